"""The protocol's conformance suite against a kit server over HTTP, and against the same server on the SDK alone."""

from pathlib import Path

import pytest
from conformance_suite import Checks, passed, play_suite
from raw_clients import raw_server

pytestmark = pytest.mark.anyio

SERVER = str(Path(__file__).parents[1] / "support" / "conformance_server.py")


async def results(side: str, revision: str, place: Path, *chosen: str) -> Checks:
    """As `play_suite`, for the server of this test."""
    async with raw_server([SERVER, side]) as port:
        return await play_suite(f"http://127.0.0.1:{port}/mcp", revision, place, *chosen)


@pytest.mark.parametrize(
    ("revision", "least"), [pytest.param("2025-11-25", 32, marks=pytest.mark.full), ("2026-07-28", 39)]
)
async def test_a_kit_server_passes_what_the_sdks_passes(revision: str, least: int, tmp_path: Path) -> None:
    theirs = await results("sdk", revision, tmp_path / "sdk", "--suite", "all")
    ours = await results("kit", revision, tmp_path / "kit", "--suite", "all")
    assert ours.keys() == theirs.keys()
    failed = {name for name, checks in theirs.items() if not passed(checks)}
    # The rest resumes streams, for which the server has no store here; and uvicorn on httptools keeps spaces at the end
    # of a header's value, which `mcp_wire` removes.
    assert len(theirs) - len(failed) >= least, failed
    for number, (scenario, checks) in enumerate(theirs.items()):
        if ours[scenario] != checks and passed(checks):
            # Some checks look at the clock; alone, only a real failure fails again.
            again = await results("kit", revision, tmp_path / str(number), "--scenario", scenario)
            assert list(again.values()) == [checks], scenario
