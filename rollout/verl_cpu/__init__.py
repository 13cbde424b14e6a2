"""verl on a machine without an accelerator: a `cpu` platform and the rollout engine `transformers_cpu`.

verl imports this package in every process through the entry point group `verl.plugins`. If the environment has
`VERL_PLATFORM=cpu`, importing the package registers both with verl; otherwise it does nothing and imports nothing.
"""

import importlib
import logging
import os

ROLLOUT_NAME = "transformers_cpu"
"""Value of `actor_rollout_ref.rollout.name` for our engine, and its key under `rollout.engine_kwargs`."""

_log = logging.getLogger(__name__)

if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    try:
        # If a process imports this package before verl, verl loads it as a plugin while verl itself is imported.
        # Importing verl to its end first keeps registration from running against a half-initialised verl.
        importlib.import_module("verl")

        from rollout.verl_cpu.platform import register

        register()
    except Exception:  # the boundary to verl's plugin loader, which logs a plugin's failure at DEBUG only
        _log.exception("VERL_PLATFORM=cpu is set, but verl could not be prepared for it")
        raise
