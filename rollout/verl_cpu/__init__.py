"""verl on a machine without an accelerator: a `cpu` platform and the `transformers_cpu` rollout.

verl imports this package in every process through the entry point group `verl.plugins`; importing is registering.
Without `VERL_PLATFORM=cpu` in the environment it does nothing and imports nothing.
"""

import importlib
import logging
import os

_log = logging.getLogger(__name__)

if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    try:
        # A process may import this package before verl, which loads plugins as it is imported: let it finish first.
        importlib.import_module("verl")

        from rollout.verl_cpu.register import register

        register()
    except Exception:  # the boundary to verl's plugin loader, which would report this at DEBUG only
        _log.exception("VERL_PLATFORM=cpu is set, but verl could not be prepared for it")
        raise
