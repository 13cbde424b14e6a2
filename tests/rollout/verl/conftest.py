"""What the tests of the verl adapter share."""

from __future__ import annotations

import importlib
import importlib.util
import warnings

import pytest

# Without the verl extra there is nothing here to test.
collect_ignore_glob = [] if importlib.util.find_spec("verl") else ["test_*.py"]


@pytest.fixture(scope="session")
def imported_verl() -> None:
    """verl, imported with the warnings that it and Ray raise meanwhile left out: they are not ours to fix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in ("verl.trainer.main_ppo", "verl.trainer.ppo.v1"):
            importlib.import_module(module)
