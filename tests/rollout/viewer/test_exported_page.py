"""An export replaces an earlier one when it is complete, deletes nothing else, and counts what it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from viewed_traces import ROWS, SAMPLES, hostile, training

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.viewer.export import export_html


def exported(traces: Path, output: Path, where: str | None = None) -> int:
    with Traces(traces) as opened:
        return export_html(opened, output, where=where)


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def state(output: Path) -> dict[str, Any]:
    registered = (output / "data" / "summary.js").read_text()
    return json.loads(registered.removeprefix('Viewer.register("summary",').removesuffix(");\n"))["state"]


def test_an_earlier_export_survives_one_that_fails(tmp_path: Path) -> None:
    training(tmp_path / "traces", steps=1)
    exported(tmp_path / "traces", tmp_path / "page")
    before = files(tmp_path / "page")
    with pytest.raises(ConfigError, match="no_column"):
        exported(tmp_path / "traces", tmp_path / "page", "no_column = 1")
    assert files(tmp_path / "page") == before


def test_of_an_earlier_export_nothing_is_left(tmp_path: Path) -> None:
    training(tmp_path / "traces", steps=1)
    exported(tmp_path / "traces", tmp_path / "page")
    before = set(files(tmp_path / "page"))
    (tmp_path / "page" / "data" / "t-00007.js").touch()
    assert exported(tmp_path / "traces", tmp_path / "page", "validate") == 6
    assert set(files(tmp_path / "page")) == before and state(tmp_path / "page")["count"] == 6


@pytest.mark.parametrize("traces", ["traces", "page/data"])
def test_other_files_are_never_replaced(tmp_path: Path, traces: str) -> None:
    training(tmp_path / traces, steps=1)
    with Traces(tmp_path / traces):
        pass  # makes the index
    if traces == "traces":
        (tmp_path / "page" / "data").mkdir(parents=True)
        (tmp_path / "page" / "data" / "notes.js").write_text("mine")
    before = files(tmp_path)
    with pytest.raises(ConfigError, match=r"page/data: --html: has .* \(choose another directory\)"):
        exported(tmp_path / traces, tmp_path / "page")
    assert files(tmp_path) == before


def test_counts_are_those_of_what_was_exported(tmp_path: Path) -> None:
    training(tmp_path / "traces" / "run", steps=2)
    hostile(tmp_path / "traces" / "hostile")
    assert exported(tmp_path / "traces", tmp_path / "page") == 6 + 2 * ROWS * SAMPLES + 1
    whole = state(tmp_path / "page")
    assert whole["withdrawn"] == 1 and whole["runs"] == ["hostile", "run"] and len(whole["environments"]) == 2
    where = "step = 1 -- a comment"
    assert exported(tmp_path / "traces", tmp_path / "page", where) == ROWS * SAMPLES
    assert state(tmp_path / "page") == {
        "directory": "traces",
        "last_step": 1,
        "environments": ["shop"],
        "runs": ["run"],
        "count": ROWS * SAMPLES,
        "withdrawn": 0,
        "held_out": 0,
        "trained": ROWS * SAMPLES,
    }
