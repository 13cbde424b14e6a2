"""Entry point of the group `verl.plugins`, which verl imports in every process.

With `VERL_PLATFORM=cpu` in the environment the import registers this package with verl; otherwise it does nothing and
imports nothing. A separate module, so that processes without verl, such as those of `prefork` and `sglang_server`,
can use the package without importing verl.
"""

import logging
import os

if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    try:
        from rollout.verl_cpu.platform import register

        register()
    except Exception:  # the boundary to verl's plugin loader, which logs a plugin's failure at DEBUG only
        logging.getLogger(__name__).exception("VERL_PLATFORM=cpu is set, but verl could not be prepared for it")
        raise
