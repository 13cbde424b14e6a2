"""Trajectories over the real vLLM server, compared with the server's own log and with what it sent."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from ending_model import make_ending_model
from engine_trajectories import assert_as_computed, assert_as_logged, played
from vllm_server import needs_vllm, requests_logged, running_vllm

from mcp_rollout.rollout.trace.store import read_traces

pytestmark = [pytest.mark.anyio, pytest.mark.full, needs_vllm, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def ending_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_ending_model(tmp_path_factory.mktemp("ending"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def vllm(ending_model: Path, home: Path) -> Iterator[str]:
    with running_vllm(ending_model, home) as address:
        yield address


async def test_trajectories_are_recorded_as_the_server_logged_them(
    vllm: str, ending_model: Path, home: Path, tmp_path: Path
) -> None:
    recorded = await played(vllm, ending_model, tmp_path, trajectories=32, turns=15)
    assert_as_logged(recorded, requests_logged(home))
    assert_as_computed(recorded[:5], ending_model)


async def test_an_evaluation_of_the_command_line_is_what_the_server_logged(
    vllm: str, ending_model: Path, home: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "mcp_rollout", "run", "calculator", "-n", "4", "--engine", vllm]
    options = ["--tokenizer", ending_model, "--out", tmp_path / "traces", "--json"]
    done = await anyio.run_process([*command, *options], cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr.decode()
    recorded = list(read_traces(tmp_path / "traces"))
    assert json.loads(done.stdout)["environments"]["calculator"]["trajectories"] == len(recorded) == 4
    assert_as_logged(recorded, requests_logged(home))
