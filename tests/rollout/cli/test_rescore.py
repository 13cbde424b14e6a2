"""`rescore` names the directory of the new traces after that of the old ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import ROOT, mcp_rollout


@pytest.mark.parametrize(("directory", "cwd"), [(".", "runs"), ("..", "runs/more")])
def test_new_traces_are_beside_a_directory_that_is_named_relatively(tmp_path: Path, directory: str, cwd: str) -> None:
    (tmp_path / "runs" / "more").mkdir(parents=True)
    environment = ROOT / "configs" / "environments" / "calculator.yaml"
    done = mcp_rollout("rescore", directory, environment, "--json", cwd=tmp_path / cwd)
    assert done.status == 0, done.err
    assert done.json["out"] == str(tmp_path / "runs-rescored")
