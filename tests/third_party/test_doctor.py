"""The doctor on servers of other projects: its verdict against what their source says, run after run."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from doctor_servers import KnownServer, known_servers

from mcp_rollout import GatewayConfig
from mcp_rollout.rollout.doctor.examination import Options
from mcp_rollout.rollout.doctor.examine import examine
from mcp_rollout.rollout.doctor.report import ServerReport, Verdict

pytestmark = pytest.mark.anyio
KNOWN = known_servers()
SLICE = ("thinking", "memory", "memory_default", "filesystem", "mcp_server_time", "sqlite")
RUNS = 10
MOST_UNKNOWN = 5
UNKNOWN = ("mcp_server_fetch", "bytesmith", "commands", "steps", "shrimp")
"""Servers on which the doctor has no verdict without a flag."""
MISSED = ("customers",)
"""Servers whose state the doctor does not see: random numbers that are drawn once, and look like any others."""
RIGHT = {
    "none": {Verdict.STATELESS},
    # A directory besides the process is more than it needs, and keeps it apart.
    "process": {Verdict.OWN, Verdict.LEASE_DIR},
    "disk": {Verdict.LEASE_DIR, Verdict.LEAKS},
    "outside": {Verdict.STATELESS},
}
"""The verdicts that say what the source says; `unknown` says nothing."""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """What the servers are started on: a directory of files, and a repository of one commit."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "notes.txt").write_text("Buy milk.\n")
    repository = tmp_path / "repository"
    git = ["git", "-C", str(repository), "-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    (repository / "poem.txt").write_text("so much depends\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "A poem"], check=True)
    return tmp_path


async def reports_on(servers: Sequence[KnownServer], work: Path) -> dict[str, ServerReport]:
    config = GatewayConfig.model_validate({"servers": {server.name: server.entry_in(work) for server in servers}})
    return {report.server: report for report in await examine(config, Options(at_a_time=3))}


def snapshot(work: Path) -> dict[str, bytes]:
    return {str(file.relative_to(work)): file.read_bytes() for file in sorted(work.rglob("*")) if file.is_file()}


async def test_the_verdicts_on_a_few_servers_are_those_of_their_source(work: Path) -> None:
    before = snapshot(work)
    reports = await reports_on([KNOWN[name] for name in SLICE], work)
    found = {name: reports[name].verdict for name in SLICE}
    assert {
        name: verdict
        for name, verdict in found.items()
        if name not in UNKNOWN and verdict not in RIGHT[KNOWN[name].state]
    } == {}
    # It writes beside its program, which it may not.
    assert "server-memory/dist/memory.jsonl" in reports["memory_default"].problems[0]
    assert snapshot(work) == before


@pytest.mark.full
@pytest.mark.needs("servers")
@pytest.mark.timeout(1700)
@pytest.mark.parametrize("part", range(10))
async def test_the_verdicts_are_right_in_every_run(part: int, work: Path) -> None:
    servers = [server for index, server in enumerate(KNOWN.values()) if index % 10 == part]
    before = snapshot(work)
    runs = [await reports_on(servers, work) for _ in range(RUNS)]
    found = {server.name: {str(run[server.name].verdict) for run in runs} for server in servers}
    assert {name for name, verdicts in found.items() if len(verdicts) > 1} == set(), found
    for server in servers:
        (verdict,) = found[server.name]
        # None of their entries says `shared`, and none of them declares it.
        assert {run[server.name].advice.scope for run in runs if run[server.name].advice} <= {None, "process"}
        right = RIGHT[server.state] if server.starts else {Verdict.UNFIT}
        right = {Verdict.STATELESS} if server.name in MISSED else right
        assert verdict in right or (server.name in UNKNOWN and verdict == Verdict.UNKNOWN), runs[0][server.name]
    assert snapshot(work) == before


def test_the_servers_are_of_all_kinds_and_few_are_unknown() -> None:
    states = [server.state for server in KNOWN.values() if server.starts]
    installs = [server.install for server in KNOWN.values() if server.starts]
    node = [server for server in KNOWN.values() if "{node}" in server.entry["command"]]
    assert len(states) >= 55 and states.count("process") >= 8 and states.count("disk") >= 5
    assert installs.count("mcp1") >= 5 and len(node) >= 5 and len(UNKNOWN) <= MOST_UNKNOWN
