"""The protocol's conformance suite against a kit server over HTTP, and against the same server on the SDK alone."""

import json
import subprocess
from pathlib import Path

import anyio
import pytest
from raw_clients import raw_server
from third_party import NODE, PLACE

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]

SUITE = PLACE / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
SERVER = str(Path(__file__).parents[1] / "support" / "conformance_server.py")
Checks = dict[str, dict[str, str]]


async def results(side: str, revision: str, place: Path, *chosen: str) -> Checks:
    """By scenario, the status of each check.

    Args:
        place: A directory that does not exist.
        chosen: Options that choose scenarios.
    """
    assert SUITE.is_file(), f"{SUITE} is missing: run `make third-party`"
    async with raw_server([SERVER, side]) as port:
        url = f"http://127.0.0.1:{port}/mcp"
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


@pytest.mark.parametrize(("revision", "least"), [("2025-11-25", 25), ("2026-07-28", 36)])
async def test_a_kit_server_passes_what_the_sdks_passes(revision: str, least: int, tmp_path: Path) -> None:
    theirs = await results("sdk", revision, tmp_path / "sdk", "--suite", "all")
    ours = await results("kit", revision, tmp_path / "kit", "--suite", "all")
    assert ours.keys() == theirs.keys()
    failed = {name for name, checks in theirs.items() if not passed(checks)}
    # The rest needs tools and subscriptions that the server of this test does not have.
    assert len(theirs) - len(failed) >= least, failed
    for number, (scenario, checks) in enumerate(theirs.items()):
        if ours[scenario] != checks and passed(checks):
            # Some checks look at the clock; alone, only a real failure fails again.
            again = await results("kit", revision, tmp_path / str(number), "--scenario", scenario)
            assert list(again.values()) == [checks], scenario
