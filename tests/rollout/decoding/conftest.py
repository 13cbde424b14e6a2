"""What the tests of decoding share."""

from __future__ import annotations

import importlib.util

import pytest

# Without the verl extra there are no models to test.
collect_ignore_glob = [] if importlib.util.find_spec("verl") else ["test_*.py"]


@pytest.fixture(autouse=True)
def with_verl(imported_verl: None) -> None:
    """torch and transformers are imported once, with the warnings of their import left out."""
