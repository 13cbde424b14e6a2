"""For every test: asyncio alone, since that is what verl's workers run; and verl itself where a test asks for it."""

from __future__ import annotations

import importlib
import warnings

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def imported_verl() -> None:
    """verl, imported with the warnings that it and Ray raise meanwhile left out: they are not ours to fix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in ("verl.trainer.main_ppo", "verl.trainer.ppo.v1"):
            importlib.import_module(module)
