"""The server side of the protocol's conformance suite, which `make third-party` installs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import anyio
from third_party import NODE, PLACE

SUITE = PLACE / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
Checks = dict[str, dict[str, str]]


async def play_suite(url: str, revision: str, place: Path, *chosen: str) -> Checks:
    """By scenario, the status of each check of the server at `url`.

    Args:
        place: A directory that does not exist.
        chosen: Options that choose scenarios.
    """
    assert SUITE.is_file(), f"{SUITE} is missing: run `make third-party`"
    argv = [NODE, str(SUITE), "server", "--url", url, *chosen, "--spec-version", revision, "-o", str(place)]
    await anyio.run_process(argv, check=False, stderr=subprocess.STDOUT)
    return _checks_in(place)


def _checks_in(place: Path) -> Checks:
    found: Checks = {}
    for file in place.rglob("checks.json"):
        scenario = file.parent.name.removeprefix("server-")[:-25]
        found[scenario] = {check["id"]: check["status"] for check in json.loads(file.read_text())}
    return found


def passed(checks: dict[str, str]) -> bool:
    return all(status in ("SUCCESS", "INFO", "SKIPPED") for status in checks.values())
