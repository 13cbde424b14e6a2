"""The protocol's official conformance suite against the gateway as a client, in both eras."""

import json
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.abc
import pytest
from conformance_client import play
from third_party import NODE, PLACE

pytestmark = pytest.mark.anyio

SUITE = PLACE / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
RELAY = Path(__file__).with_name("relay.py")


async def answer(stream: anyio.abc.SocketStream) -> None:
    async with stream:
        told = b""
        while not told.endswith(b"\n"):
            told += await stream.receive()
        given = json.loads(told)
        await play(given["scenario"], given["url"], given["context"])
        await stream.send(b"done\n")


async def results(revision: str | None, place: Path, *chosen: str) -> dict[str, list[str]]:
    """By scenario, the checks that failed.

    Args:
        place: An empty directory.
        chosen: Options that choose scenarios.
    """
    assert SUITE.is_file(), f"{SUITE} is missing: run `make third-party`"
    address, found = place / "s", place / "results"
    command = f"{sys.executable} -I -S {RELAY} {address}"
    argv = [NODE, str(SUITE), "client", *chosen, "--timeout", "60000"]
    argv += ["--spec-version", revision] if revision else []
    async with await anyio.create_unix_listener(address) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        await anyio.run_process([*argv, "--command", command, "-o", str(found)], check=False, stderr=subprocess.STDOUT)
        tasks.cancel_scope.cancel()
    scenarios: dict[str, list[str]] = {}
    for file in found.rglob("checks.json"):
        scenario = file.parent.relative_to(found).as_posix().rsplit(f"-{file.parent.name[-24:]}", 1)[0]
        checks = json.loads(file.read_text())
        scenarios[scenario] = [check["id"] for check in checks if check["status"] not in ("SUCCESS", "INFO", "SKIPPED")]
    return scenarios


@pytest.mark.parametrize(("revision", "count"), [("2025-11-25", 19), ("2026-07-28", 33)])
async def test_every_scenario_of_the_suite_passes(revision: str, count: int, tmp_path: Path) -> None:
    scenarios = await results(revision, tmp_path, "--suite", "all")
    assert len(scenarios) == count
    failed = {scenario: checks for scenario, checks in scenarios.items() if checks}
    # The suite plays all at once and some of its checks look at the clock; alone, only a real failure fails again.
    for number, scenario in enumerate(failed):
        alone = tmp_path / str(number)
        alone.mkdir()
        assert list((await results(revision, alone, "--scenario", scenario)).values()) == [[]], scenario
