"""One tiny model for all tests of engines, and what its logprobs must be."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from inference_servers import Generator

# Without the verl extra there are no models to test.
collect_ignore_glob = [] if importlib.util.find_spec("verl") else ["test_*.py"]


@pytest.fixture(autouse=True)
def with_verl(imported_verl: None) -> None:
    """verl's tokenizer code is what every engine's test needs."""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny"), vocab_size=512, hidden=64, layers=1)


@pytest.fixture(scope="session")
def generator(model: Path) -> Generator:
    from inference_servers import Generator

    return Generator(model)
