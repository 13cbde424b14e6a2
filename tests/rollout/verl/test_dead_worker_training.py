"""Two steps of verl's trainer, with an agent worker that is killed in the middle of the first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from echo_training import ENDING_AGENT, JUDGED, ROWS, SHOUT_PLUM, prepare_training
from engine_log import read_records
from verl_run import logged, train

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(1200)]

SAMPLES = 4
ENVIRONMENT = {**JUDGED, "agent": {"use": "ending_agent:Ends"}}


@dataclass(frozen=True)
class Run:
    metrics: dict[int, dict[str, Any]]
    records: list[dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("dead_worker")
    (home / "ending_agent.py").write_text(ENDING_AGENT)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(home))  # also for the preparing commands, which import the agent
        overrides = prepare_training(home, ENVIRONMENT, SHOUT_PLUM, samples=SAMPLES)
        done = train(
            home,
            overrides
            | {
                "trainer.total_training_steps": 2,
                "actor_rollout_ref.rollout.agent.num_workers": 2,
            },
            KILLED_ONCE=str(home / "killed"),
        )
    assert done.returncode == 0, done.stdout[-8000:]
    return Run(logged(home), read_records(home / "traces"))


def test_training_goes_on_with_complete_batches(run: Run) -> None:
    assert sorted(run.metrics) == [1, 2]
    for metrics in run.metrics.values():
        assert metrics["mcp/trajectories"] == ROWS * SAMPLES
        assert metrics["mcp/failed_share"] == 0 and metrics["mcp/withdrawn_groups"] == 0
        assert metrics["mcp/group_size/min"] == SAMPLES


def test_the_replaced_worker_is_counted_once(run: Run) -> None:
    assert [run.metrics[step]["mcp/workers_replaced"] for step in (1, 2)] == [1, 0]


def test_only_the_dead_workers_row_was_played_again(run: Run) -> None:
    first = [record["origin"] for record in run.records if record["origin"]["step"] == 1]
    again = [origin for origin in first if origin["attempt"] == 1]
    (row,) = {origin["row"] for origin in again}
    assert sorted(origin["sample"] for origin in again) == list(range(SAMPLES))
    other = [origin for origin in first if origin["row"] != row]
    assert len(other) == SAMPLES and {origin["attempt"] for origin in other} == {0}
    assert {record["origin"]["attempt"] for record in run.records if record["origin"]["step"] == 2} == {0}
