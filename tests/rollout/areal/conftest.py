"""What the tests of AReaL's adapter share. Most of them need AReaL's own environment: make areal."""

from __future__ import annotations

import importlib.util

# `make test-full` runs this directory in both environments.
WITHOUT_AREAL = ["test_groups.py", "test_samples.py", "test_stopping.py", "test_areal_training.py", "test_learning.py"]
collect_ignore_glob = [] if importlib.util.find_spec("areal") else ["test_workflow.py", "test_agreement.py"]
