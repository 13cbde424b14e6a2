"""An explanation that could not be computed is computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from trace_samples import recorded_trace

from mcp_rollout.rollout.trace.index import FILE
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.viewer import reading
from mcp_rollout.rollout.viewer.directory import Directory
from mcp_rollout.rollout.viewer.explain import explain
from mcp_rollout.rollout.viewer.reading import Explaining, Refreshing

pytestmark = pytest.mark.anyio


async def test_an_index_that_cannot_be_read_once_does_not_end_the_explanations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "AGAIN_S", 0.0)
    TraceStore(tmp_path).append(recorded_trace("a"))
    index = tmp_path / FILE

    async def explained(*, well: bool) -> dict[str, Any]:
        """The first explanation with a problem, or without one."""
        while True:
            found = await explains.found()
            if found["status"] == "done" and ("problem" not in found) == well:
                return found
            await anyio.lowlevel.checkpoint()

    with Refreshing(tmp_path) as refreshing, anyio.fail_after(60):
        explains = Explaining(refreshing, Directory, lambda directory: explain(directory).record())
        while refreshing.is_indexing:
            await anyio.lowlevel.checkpoint()
        whole = index.read_bytes()
        index.write_bytes(b"not a database" * 1000)
        assert "not a database" in (await explained(well=False))["problem"]
        index.write_bytes(whole)
        assert "findings" in await explained(well=True)
        explains.close()
