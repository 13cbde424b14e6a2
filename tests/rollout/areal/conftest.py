"""What the tests of AReaL's adapter share.

Those that import AReaL need its own environment (`make areal`), and are left out elsewhere; the others are left out
there, so that `make test-full` can run this directory in both.
"""

from __future__ import annotations

import importlib.util

IMPORT_AREAL = ["test_agreement.py", "test_areal_preflight.py", "test_workflow.py"]
OTHERS = ["test_areal_training.py", "test_groups.py", "test_learning.py", "test_samples.py", "test_stopping.py"]
collect_ignore_glob = OTHERS if importlib.util.find_spec("areal") else IMPORT_AREAL
