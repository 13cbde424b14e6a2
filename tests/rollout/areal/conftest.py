"""What the tests of AReaL's adapter share.

Those that import AReaL need its own environment (`make sglang`), and are left out elsewhere; the others are left out
there, so that `test_in_its_environment.py` can run this directory there.
"""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest

IMPORT_AREAL = ["test_agreement.py", "test_areal_preflight.py", "test_command_line.py", "test_packed.py"]
IMPORT_AREAL += ["test_workflow.py"]
OTHERS = ["test_areal_training.py", "test_groups.py", "test_learning.py", "test_samples.py"]
OTHERS += ["test_in_its_environment.py", "test_single_controller.py", "test_stopping.py"]
collect_ignore_glob = OTHERS if importlib.util.find_spec("areal") else IMPORT_AREAL


if importlib.util.find_spec("areal"):
    # After AReaL's engine was used under pytest, native modules crash as the interpreter ends, behind
    # the last Python frame. AReaL's trainer ends with status 0. The reports are out by now, the status is known.
    _STATUS = pytest.StashKey[int]()

    def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
        session.config.stash[_STATUS] = int(exitstatus)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(config: pytest.Config) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash.get(_STATUS, 1))
