"""`bench`: what it measures is measured, and comes as one object."""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
