"""The protocol's conformance suite against `serve`, in front of the SDK's everything server."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from conformance_suite import Checks, passed, play_suite
from programs import listening_program
from served import served

from mcp_rollout import GatewayConfig

pytestmark = pytest.mark.anyio

EVERYTHING = Path(__file__).parents[1] / "third_party" / "everything_server.py"


@asynccontextmanager
async def everything() -> AsyncIterator[str]:
    """The address of the SDK's everything server."""
    argv = [sys.executable, str(EVERYTHING), "--log-level", "ERROR", "--port"]
    async with listening_program(lambda port: [*argv, str(port)]) as port:
        yield f"http://127.0.0.1:{port}/mcp"


async def through_serve(revision: str, place: Path, *chosen: str) -> Checks:
    async with everything() as url:
        config = GatewayConfig.model_validate({"servers": {"everything": {"url": url, "required": True}}})
        async with served(config) as running:
            return await play_suite(running.url, revision, place, *chosen)


@pytest.mark.parametrize(("revision", "count"), [("2025-11-25", 33), ("2026-07-28", 40)])
async def test_every_scenario_passes_through_serve(revision: str, count: int, tmp_path: Path) -> None:
    found = await through_serve(revision, tmp_path / "all", "--suite", "all")
    assert len(found) == count
    for number, scenario in enumerate(name for name, checks in found.items() if not passed(checks)):
        # Some checks look at the clock; alone, only a real failure fails again.
        again = await through_serve(revision, tmp_path / str(number), "--scenario", scenario)
        assert list(map(passed, again.values())) == [True], (scenario, again)
