"""The protocol's conformance suite against the SDK's everything server: behind `serve`, on the kit, and as it is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from raw_clients import raw_server
from served import served
from third_party import NODE, PLACE

from mcp_rollout import GatewayConfig

pytestmark = pytest.mark.anyio
SUITE = PLACE / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
EVERYTHING = Path(__file__).parents[1] / "third_party"
PROGRAM = f"""
import sys
sys.path.insert(0, {str(EVERYTHING)!r})
from everything_server import event_store, mcp
from mcp_rollout.mcp_servers.kit import main
host, _, port = sys.argv[1].rpartition(":")
"""
ON_THE_SDK = f"{PROGRAM}mcp.run('streamable-http', host=host, port=int(port))"
RESUMABLE = (
    f"{PROGRAM}mcp.run('streamable-http', host=host, port=int(port), event_store=event_store, retry_interval=100)"
)
ON_THE_KIT = f"{PROGRAM}main(mcp, arguments=['--http', sys.argv[1]])"
Checks = dict[str, dict[str, str]]


@asynccontextmanager
async def everything(program: str) -> AsyncIterator[str]:
    """The address of the everything server."""
    async with raw_server(["-c", program]) as port:
        yield f"http://127.0.0.1:{port}/mcp"


async def checks_of(url: str, revision: str, place: Path, *chosen: str) -> Checks:
    """By scenario, the status of each check of the server at `url`.

    Args:
        place: A directory that does not exist.
        chosen: Options that choose scenarios.
    """
    assert SUITE.is_file(), f"{SUITE} is missing: run `make third-party`"
    argv = [NODE, str(SUITE), "server", "--url", url, *chosen, "--spec-version", revision, "-o", str(place)]
    await anyio.run_process(argv, check=False, stderr=subprocess.STDOUT)
    return checks_in(place)


def checks_in(place: Path) -> Checks:
    found: Checks = {}
    for file in place.rglob("checks.json"):
        scenario = file.parent.name.removeprefix("server-")[:-25]
        found[scenario] = {check["id"]: check["status"] for check in json.loads(file.read_text())}
    return found


def passed(checks: dict[str, str]) -> bool:
    return all(status in ("SUCCESS", "INFO", "SKIPPED") for status in checks.values())


async def through_serve(revision: str, place: Path, *chosen: str) -> Checks:
    async with everything(RESUMABLE) as url:
        config = GatewayConfig.model_validate({"servers": {"everything": {"url": url, "required": True}}})
        async with served(config) as running:
            return await checks_of(running.url, revision, place, *chosen)


@pytest.mark.parametrize(("revision", "count"), [("2025-11-25", 33), ("2026-07-28", 40)])
async def test_every_scenario_passes_through_serve(revision: str, count: int, tmp_path: Path) -> None:
    found = await through_serve(revision, tmp_path / "all", "--suite", "all")
    assert len(found) == count
    for number, scenario in enumerate(name for name, checks in found.items() if not passed(checks)):
        # Some checks look at the clock; alone, only a real failure fails again.
        again = await through_serve(revision, tmp_path / str(number), "--scenario", scenario)
        assert list(map(passed, again.values())) == [True], (scenario, again)


async def alone(program: str, revision: str, place: Path, *chosen: str) -> Checks:
    async with everything(program) as url:
        return await checks_of(url, revision, place, *chosen)


@pytest.mark.parametrize(
    ("revision", "least"), [pytest.param("2025-11-25", 32, marks=pytest.mark.full), ("2026-07-28", 39)]
)
async def test_a_kit_server_passes_what_the_sdks_passes(revision: str, least: int, tmp_path: Path) -> None:
    theirs = await alone(ON_THE_SDK, revision, tmp_path / "sdk", "--suite", "all")
    ours = await alone(ON_THE_KIT, revision, tmp_path / "kit", "--suite", "all")
    assert ours.keys() == theirs.keys()
    failed = {name for name, checks in theirs.items() if not passed(checks)}
    # One needs a store of events; in the other uvicorn on httptools keeps spaces at the end of a header's value, which
    # `mcp_wire` removes.
    assert len(theirs) - len(failed) >= least, failed
    for number, (scenario, checks) in enumerate(theirs.items()):
        if ours[scenario] != checks and passed(checks):
            # Some checks look at the clock; alone, only a real failure fails again.
            again = await alone(ON_THE_KIT, revision, tmp_path / str(number), "--scenario", scenario)
            assert list(again.values()) == [checks], scenario
