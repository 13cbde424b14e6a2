"""`bench`: what it measures is measured, and comes as one object."""

import asyncio
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollout.bench.sessions import measure

ROOT = Path(__file__).parents[3]
COMMAND = Path(sys.executable).with_name("mcp-rollout")
TRANSPORTS = {"in_process", "stdio", "http"}


def bench(*arguments: str) -> Any:
    done = subprocess.run(
        [COMMAND, "bench", *arguments, "--json"], cwd=ROOT, capture_output=True, check=True, timeout=100
    )
    return json.loads(done.stdout)


def test_a_call_is_compared_with_the_sdks_client_and_with_connecting_on_every_transport() -> None:
    found = bench("call", "--calls", "20", "--connects", "1")
    assert {*found} >= {"ratio_to_sdk", "ratio_to_connecting", "calls_per_s", "sdk_cpu_ms", "session_cpu_ms"}
    for by_transport in (
        found["ratio_to_sdk"],
        found["cpu_ratio_to_sdk"],
        found["ratio_to_connecting"],
        found["session_ms"],
    ):
        assert by_transport.keys() == TRANSPORTS and all(value > 0 for value in by_transport.values())
    # Connecting means starting the server: a hundredfold, however busy the machine.
    assert found["ratio_to_connecting"]["stdio"] > 10


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_call_costs_no_more_than_it_may() -> None:
    """Ratios of medians, each within one run with both sides in turns; of several runs the middle one counts."""
    rounds = [bench("call", "--calls", "300", "--connects", "16") for _ in range(5)]

    def middle(key: str, transport: str) -> float:
        return statistics.median(found[key][transport] for found in rounds)

    assert middle("ratio_to_sdk", "in_process") <= 1.10
    assert middle("ratio_to_sdk", "stdio") <= 1.10
    assert middle("cpu_ratio_to_sdk", "in_process") <= 0.8
    assert middle("cpu_ratio_to_sdk", "stdio") <= 0.4
    assert middle("cpu_ratio_to_sdk", "http") <= 0.15
    assert middle("ratio_to_sdk", "http") <= 0.8
    # In process there is nothing to start or open, so connecting costs little: see docs/performance.md.
    assert middle("ratio_to_connecting", "stdio") >= 10
    assert middle("ratio_to_connecting", "http") >= 10


def test_a_lease_is_measured_cold_and_warm() -> None:
    found = bench("lease", "examples/guess/guess.yaml", "-n", "3")
    assert found["cold_s"] >= found["gateway_start_s"] > 0 and found["warm_ms_max"] >= found["warm_ms_p50"] > 0


def test_sessions_take_every_step_over_each_transport() -> None:
    rows = ["in_process", "stdio", "http", "http_sdk"]
    found = bench("sessions", "-n", "4", "--steps", "2", *(part for row in rows for part in ("--over", row)))
    assert [cell["over"] for cell in found["cells"]] == rows
    for cell in found["cells"]:
        assert cell["sessions"] == 4 and cell["lost"] == 0 and cell["failures"] == {}
        # Two steps of a second each; what they took beyond it is no less than nothing.
        assert 0 < cell["steps_per_s"] <= 4 and 0 <= cell["p50_s"] <= cell["p99_s"]
        # The kernel counts another process's time in steps of 10 ms, which so few calls may not fill.
        assert cell["client_ms"] > 0 and cell["server_ms"] >= 0


def test_openenv_is_left_out_where_its_environment_is_missing(tmp_path: Path) -> None:
    arguments = ["sessions", "-n", "1", "--over", "openenv", "--openenv", str(tmp_path / "python"), "--json"]
    done = subprocess.run([COMMAND, "bench", *arguments], cwd=ROOT, capture_output=True, check=True, timeout=100)
    assert json.loads(done.stdout)["cells"] == []
    assert b"make bench-peers" in done.stderr


def test_an_unknown_row_is_named() -> None:
    done = subprocess.run([COMMAND, "bench", "sessions", "--over", "carrier"], capture_output=True, timeout=100)
    assert done.returncode == 2 and b"carrier" in done.stderr


def test_too_few_open_files_are_said_at_start() -> None:
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400));"
    program = f"{limit} from rollout.bench.sessions import main; main('http', 512, 1)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "512 sessions over HTTP need 812 open files" in done.stderr and "may open 400" in done.stderr


DYING = """
import os
from mcp_servers.kit import main
from rollout.bench.wait_server import create_server
server = create_server()
server.remove_tool("step")
@server.tool()
async def step(wait_s: float) -> int:
    if wait_s:
        os._exit(3)
    return 0
main(server, arguments=[])
"""


def test_lost_steps_are_counted() -> None:
    """The server dies in the first step: every session loses all its steps, and the run ends."""
    cell = asyncio.run(measure({"command": sys.executable, "args": ["-c", DYING]}, None, 2, 3))
    assert cell.lost == 6 and sum(cell.failures.values()) == 2
