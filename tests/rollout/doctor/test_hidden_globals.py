"""The doctor on servers that keep one global for all their clients: none of them is called safe."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hidden_globals import SHAPES, hidden_global, shape_of

from mcp_rollout import GatewayConfig
from mcp_rollout.rollout.doctor.examination import Options
from mcp_rollout.rollout.doctor.examine import examine
from mcp_rollout.rollout.doctor.report import IsolationVerdict, ServerReport, Verdict

pytestmark = pytest.mark.anyio
DRAWN = 60
SAMPLE = (1, 3, 12, 42)
"""A cart, a clock, a cursor and a cache that were called stateless or safe to share when a second lease played after
the first one's whole script."""


async def reports_on(seeds: range | tuple[int, ...], directory: Path, scope: str | None) -> dict[int, ServerReport]:
    servers = {}
    for seed in seeds:
        (directory / f"{seed}.py").write_text(hidden_global(seed))
        entry = {"command": sys.executable, "args": ["-I", "-S", str(directory / f"{seed}.py")]}
        servers[str(seed)] = entry if scope is None else {**entry, "scope": scope}
    config = GatewayConfig.model_validate({"servers": servers})
    reports = await examine(config, Options(at_a_time=2))
    return {int(report.server): report for report in reports}


def called_safe(report: ServerReport) -> bool:
    assert report.advice is not None, report
    seen = report.isolation[0].verdict in (IsolationVerdict.LEAKS, IsolationVerdict.UNKNOWN)
    return report.verdict in (Verdict.SHARE, Verdict.STATELESS) or report.advice.scope == "shared" or not seen


async def test_a_global_is_found_although_the_last_call_of_a_lease_erases_it(tmp_path: Path) -> None:
    reports = await reports_on(SAMPLE, tmp_path, scope=None)
    assert {seed: report for seed, report in reports.items() if called_safe(report)} == {}
    assert {report.isolation[0].scope for report in reports.values()} == {"shared"}


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scope", [None, "shared"])
async def test_no_server_with_a_global_is_called_safe_whatever_its_shape(tmp_path: Path, scope: str | None) -> None:
    assert {shape_of(seed) for seed in range(DRAWN)} == set(SHAPES)
    assert len({hidden_global(seed) for seed in range(DRAWN)}) >= DRAWN - 5
    reports = await reports_on(range(DRAWN), tmp_path, scope)
    assert {seed: report for seed, report in reports.items() if called_safe(report)} == {}
    # An entry that says `shared` declares it; what the probes saw is stronger.
    assert scope is None or True not in {report.fit for report in reports.values()}
    leaks = [seed for seed, report in reports.items() if report.isolation[0].verdict is IsolationVerdict.LEAKS]
    assert len(leaks) >= DRAWN - 5
