"""What commands write is for their user alone: it holds what tools returned."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_rollout.rollout.cli.app import main


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_traces_cassettes_and_exports_are_for_their_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mcp_rollout(*argv: object) -> None:
        monkeypatch.setattr(sys, "argv", ["mcp-rollout", *map(str, argv)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0, argv

    home = tmp_path / "made"
    traces, exports = home / "runs" / "one", home / "exports" / "one"
    mcp_rollout("run", "calculator", "--engine", "expert", "-n", "1", "--out", traces, "--record", home / "cassettes")
    mcp_rollout("trace", "ls", traces)  # makes the index
    for arguments in (["--sft", "-o", exports / "sft.jsonl"], ["--parquet", "-o", exports / "columns.parquet"]):
        mcp_rollout("trace", "export", traces, *arguments)
    made = [home, *home.rglob("*")]
    assert {path.suffix for path in made} >= {".jsonl", ".parquet", ".json", ".sqlite"}
    shared = {path.name: oct(mode) for path in made if (mode := stat.S_IMODE(path.lstat().st_mode)) & 0o077}
    assert shared == {}
