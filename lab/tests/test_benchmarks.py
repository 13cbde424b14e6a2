"""`python -m lab.benchmarks`: what it measures is measured, and comes as one object."""

import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from rich.table import Table

from lab.benchmarks import loop, memory, overlap, traces
from lab.benchmarks.callbacks import timed
from lab.benchmarks.costs import cpu_by_process, cpu_s, cpu_since_s
from lab.benchmarks.runs import medians
from lab.benchmarks.sessions import measure
from mcp_rollout.rollout.cli.options import output_console

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "lab.benchmarks"]
TRANSPORTS = {"in_process", "in_process_sdk", "stdio", "http"}
BOUND_S = 280
"""Every command starts several processes, which takes long on a busy machine."""


def bench(*arguments: str) -> Any:
    done = subprocess.run([*PROGRAM, *arguments, "--json"], cwd=ROOT, capture_output=True, check=True, timeout=BOUND_S)
    return json.loads(done.stdout)


@pytest.mark.full
def test_a_call_is_compared_with_the_sdks_client_and_with_connecting_on_every_transport() -> None:
    found = bench("call", "--calls", "20", "--connects", "1", "--callers", "1")
    assert {*found} >= {"ratio_to_sdk", "ratio_to_connecting", "calls_per_s", "sdk_cpu_ms", "session_cpu_ms"}
    for by_transport in (
        found["ratio_to_sdk"],
        found["cpu_ratio_to_sdk"],
        found["ratio_to_connecting"],
        found["session_ms"],
    ):
        assert by_transport.keys() == TRANSPORTS and all(value > 0 for value in by_transport.values())
    for transport in TRANSPORTS:
        assert {*found["by_callers"][transport]} == {"1", "16"}
    # Nothing can cost less than writing and reading the bytes.
    assert all(0 < found["floor_cpu_ms"][transport] < found["sdk_cpu_ms"][transport] for transport in ("stdio", "http"))
    # Connecting means starting the server: a hundredfold, however busy the machine.
    assert found["ratio_to_connecting"]["stdio"] > 10


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_call_costs_no_more_than_it_may() -> None:
    """Ratios of medians, each within one run with both sides in turns; of several runs the middle one counts."""
    rounds = [bench("call", "--calls", "300", "--connects", "16") for _ in range(5)]

    def middle(key: str, transport: str) -> float:
        return statistics.median(found[key][transport] for found in rounds)

    assert middle("ratio_to_sdk", "in_process") <= 0.9
    assert middle("ratio_to_sdk", "in_process_sdk") <= 1.15
    assert middle("ratio_to_sdk", "stdio") <= 1.10
    assert middle("cpu_ratio_to_sdk", "in_process") <= 0.8
    # The ranges of docs/performance.md with other load; the target over stdio, 0.4, is missed.
    assert middle("cpu_ratio_to_sdk", "stdio") <= 0.65
    assert middle("cpu_ratio_to_sdk", "http") <= 0.2
    assert middle("ratio_to_sdk", "http") <= 0.8
    # In process there is nothing to start or open, so connecting costs little: see docs/performance.md.
    assert middle("ratio_to_connecting", "stdio") >= 10
    assert middle("ratio_to_connecting", "http") >= 10


def test_a_lease_is_measured_cold_and_warm() -> None:
    found = bench("lease", "examples/guess/guess.yaml", "-n", "3")
    assert found["cold_s"] >= found["gateway_start_s"] > 0
    assert found["warm_ms_max"] >= found["warm_ms_p99"] >= found["warm_ms_p50"] > 0
    assert found["sdk_cold_s"] > 0 and found["sdk_warm_ms_p50"] > 0


def test_a_wide_table_is_not_wrapped_where_output_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    names = [f"figure {number}, calls/s" for number in range(13)]
    output_console().print(Table(*names))
    assert any(all(name in line for name in names) for line in capsys.readouterr().out.splitlines())


def test_repeats_are_reported_as_medians() -> None:
    found = medians(
        [{"a": 1, "name": "x", "in": {"b": 3.0}}, {"a": 5, "name": "y", "in": {"b": 9.0}}, {"a": 2, "in": {"b": 4.0}}]
    )
    assert found == {"a": 2, "name": "x", "in": {"b": 4.0}}


def test_a_start_is_measured_forked_and_spawned() -> None:
    found = bench("start", "--forks", "3", "--spawns", "1", "-m", "mcp_rollout.mcp_servers.calculator")
    assert found["fork"]["held"] == 3 and found["spawn"]["held"] == 1
    assert found["ratio"]["pss_mb"] < 1 and 0 < found["ratio"]["cpu_ms_per_start"] < 1
    assert found["ready"]["leased"] == 3 and 0 < found["ready"]["ms_p50"] <= found["ready"]["ms_max"]


@pytest.mark.full
def test_a_turn_is_measured_in_whole_trajectories_and_beside_verls_agent() -> None:
    found = bench("turn", "--concurrency", "4", "--trajectories", "2")
    whole = found["whole_trajectories"]["4"]
    assert whole["turns"] == 15 * 64 and whole["failed"] == 0 and whole["callbacks_above_20_ms"] == {}
    assert found["beside_stock"]["ratio_own_to_stock"] > 0


@pytest.mark.full
def test_whole_trajectories_are_played_to_their_full_reward() -> None:
    found = anyio.run(loop.measure, 3, 4)
    assert found["turns"] == 15 * 4 and found["failed"] == 0 and found["client_ms_per_turn"] > 0


def test_a_collection_is_told_apart_from_the_callback_that_it_meets() -> None:
    held = [[number] for number in range(300_000)]

    async def collecting() -> None:
        gc.collect()

    with timed(above_s=60) as found:
        asyncio.run(collecting())
    assert len(held) == 300_000 and 0 < found.longest_s < found.longest_collection_s


@pytest.mark.full
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_what_overlaps_with_generations_is_kept(transport: str) -> None:
    """Four trajectories never fill the engine: the share that they keep is small, and the same for both sides."""
    for side in ("ours", "sdk"):
        found = asyncio.run(overlap.measure(side, transport, 4, 3))
        assert found["failed"] == 0 and 0 < found["kept"] <= 4 / overlap.PLACES


@pytest.mark.full
def test_memory_is_measured_while_trajectories_come_and_go() -> None:
    found = bench("memory", "-n", "20")
    assert found["trajectories"] == 20 and len(found["memory_mb"]) == 10


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_twenty_thousand_trajectories_leave_nothing_behind() -> None:
    found = asyncio.run(memory.measure(20_000))
    # A kept trace would be thousands of bytes; arenas of the allocator come and go by a megabyte, a hundred bytes each.
    assert found["grown_bytes_per_trajectory"] < 500, found


@pytest.mark.full
def test_traces_are_written_and_looked_through() -> None:
    found = bench("trace", "-n", "6")
    assert found["records"] == 6 and found["write_ms"] > 0 and found["pydantic_ms"] > 0
    assert [*found["commands"]] == [*traces.COMMANDS]
    assert all(each["cpu_s"] > 0 and each["peak_mib"] > 0 for each in found["commands"].values())


@pytest.mark.full
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


def run(*arguments: str) -> tuple[int, str, str]:
    """Status, output and errors of a measurement."""
    done = subprocess.run([*PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=BOUND_S)
    return done.returncode, done.stdout, " ".join(done.stderr.replace("│", " ").split())


def test_a_server_that_does_not_start_is_said_in_a_line(tmp_path: Path) -> None:
    status, output, errors = run("start", "-m", "json", "--forks", "1", "--spawns", "1")
    assert status == 1 and not output and "the server exited with status 1" in errors and "Traceback" not in errors
    (tmp_path / "servers.json").write_text('{"mcpServers": {"absent": {"command": "no-such-program"}}}')
    status, output, errors = run("lease", str(tmp_path / "servers.json"))
    assert status == 2 and not output and "cannot start 'no-such-program'" in errors and "Traceback" not in errors


def test_too_few_open_files_are_said_at_start() -> None:
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400));"
    program = f"{limit} from lab.benchmarks.sessions import main; main('http', 512, 1)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=BOUND_S)
    assert done.returncode == 1
    assert "512 sessions over HTTP need 812 open files" in done.stderr and "may open 400" in done.stderr


DYING = """
import os
from mcp_rollout.mcp_servers.kit import main
from lab.benchmarks.wait_server import create_server
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


def test_cpu_time_of_a_process_that_has_ended_since_is_not_taken_off_that_of_the_others() -> None:
    busy = "import time\nwhile time.process_time() < 0.2: pass\nprint()\ninput()"
    started = [
        subprocess.Popen([sys.executable, "-S", "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in started:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
    ends, goes_on = started
    before = cpu_by_process([ends.pid])
    assert before[ends.pid] >= 0.15
    ends.communicate(b"\n")
    assert cpu_since_s(before, [ends.pid]) == 0.0
    spent = cpu_since_s(before, [ends.pid, goes_on.pid])
    goes_on.communicate(b"\n")
    assert spent >= 0.15


def test_cpu_time_is_not_counted_in_ticks() -> None:
    began = time.process_time()
    assert began <= cpu_s(os.getpid()) <= time.process_time()
