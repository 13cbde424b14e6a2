"""docs/start.md, its commands word by word: from a third party's server to two steps of verl's trainer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from third_party import NODE, PLACE

from mcp_rollout.rollout.environment.parquet import read_rows
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import read_traces

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "start.md").read_text()
NPX = Path(NODE).parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npx-cli.js"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_installs_in_one_block_and_shows_each_way_of_giving_tasks() -> None:
    (installation,) = blocks("sh")
    assert installation.startswith("pip install ") and "mcp-rollout" not in installation
    commands = "".join(blocks("bash"))
    for shown in ("mcp-rollout init", "check-env", "--tasks", "mcp-rollout train", '"setup"'):
        assert shown in commands


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which every command of the page was run, in one shell that stops at the first error."""
    home = tmp_path_factory.mktemp("start")
    # The package is where npx looks before it downloads one.
    (home / "node_modules").symlink_to(PLACE / "node_modules")
    (home / "bin").mkdir()
    (home / "bin" / "npx").write_text(f'#!/bin/sh\nexec "{NODE}" "{NPX}" --offline "$@"\n')
    (home / "bin" / "npx").chmod(0o755)
    path = os.pathsep.join(map(str, (home / "bin", Path(sys.executable).parent, Path(NODE).parent)))
    environment = os.environ | {
        "PATH": f"{path}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "disabled",
        "RAY_TMPDIR": "/tmp",
    }
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", "".join(blocks("bash"))],
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return home


def traces(directory: Path) -> list[Trace]:
    found = list(read_traces(directory))
    assert found and not [trace.failure for trace in found if trace.failure]
    return found


@pytest.mark.verl
@pytest.mark.full
@pytest.mark.timeout(1600)
def test_every_command_of_the_page_works_on_a_third_partys_server(place: Path) -> None:
    assert not (place / "memory.jsonl").exists()  # the user's own data
    evaluated = traces(place / "outputs" / "before")
    assert len(evaluated) == 20 == len({trace.task.task for trace in evaluated})
    assert sum(bool(trace.setup) for trace in evaluated) == sum(bool(trace.checks) for trace in evaluated) == 10
    assert {trace.setup[0].text for trace in evaluated if trace.setup} and all(trace.reward for trace in evaluated)
    assert len(traces(place / "outputs" / "none")) == 4
    rows = {split: list(read_rows(place / "outputs" / "train" / f"{split}.parquet")) for split in ("train", "test")}
    prompts = {split: {row["prompt"][-1]["content"] for row in own} for split, own in rows.items()}
    assert sum(map(len, rows.values())) == 20 and not prompts["train"] & prompts["test"]
    trained = [trace for trace in traces(place / "outputs" / "train" / "traces") if not trace.origin.validate_]
    assert len(trained) == 2 * 4 * 4 and {trace.origin.step for trace in trained} == {1, 2}
    for trace in trained:
        assert trace.task.environment == "notes" and trace.task.prompt[-1]["content"] in prompts["train"]
        assert trace.reward is not None and {"solved", "own"} <= trace.reward.parts.keys()
        assert bool(trace.setup) == bool(trace.task.setup) == (trace.task.answer is not None)
        assert len(trace.checks) == len(trace.task.check) == (trace.task.answer is None)
