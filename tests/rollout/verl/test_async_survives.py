"""Asynchronous training through a killed worker, steps that fall into tool calls, validation and a restored checkpoint.

Every prompt has one outcome, and no batch lacks a group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import async_training
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import waiting_server
from async_check import AsyncRun, problems, read_run
from async_training import SEPARATE
from echo_training import ENDING_AGENT, JUDGED
from verl_run import ROOT, logged

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(3600)]

ROWS, SAMPLES, STEPS, SAVED = 2, 4, 4, 2
MODES: dict[str, dict[str, Any]] = {"colocate": {}, "separate": SEPARATE}


@dataclass(frozen=True)
class Job:
    run: AsyncRun
    metrics: dict[int, dict[str, Any]]

    def trained(self, *steps: int) -> set[str]:
        """Groups that were trained on in these steps."""
        return {row["uid"] for row in self.run.trained if row["dropped"] is None and row["step"] in steps}


@pytest.fixture(scope="module", params=MODES)
def jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Job]:
    """A job, and one that goes on from its checkpoint of step 2 in a directory of its own."""
    homes = [tmp_path_factory.mktemp(f"{request.param}_{name}") for name in ("first", "resumed")]
    server = ROOT / "tests" / "support" / "waiting_server.py"
    # Apart from what training writes, where verl's logger makes a directory of the name `mcp_rollout`.
    code = tmp_path_factory.mktemp("code")
    (code / "ending_agent.py").write_text(ENDING_AGENT)
    found: list[Job] = []
    overrides: dict[str, Any] = {}
    for home in homes:
        waiting = [str(server), str(home), str(ROWS * SAMPLES)]
        echo = {**JUDGED["servers"]["echo"], "args": waiting, "call_timeout_s": waiting_server.TIMEOUT_S}
        environment = {**JUDGED, "servers": {"echo": echo}, "agent": {"use": "ending_agent:Ends"}}
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("PYTHONPATH", str(code))
            patched.syspath_prepend(code)  # for the preparing commands, which import the agent in this process
            prepared = async_training.prepare(home, rows=ROWS, samples=SAMPLES, environment=environment)
            _write_rows(home)
            # The model of the first job, whose checkpoint the other one restores.
            overrides = prepared | {"actor_rollout_ref.model.path": homes[0] / "model"} | MODES[request.param]
            overrides |= {
                "data.val_files": home / "val.parquet",
                "data.shuffle": False,
                "actor_rollout_ref.actor.optim.lr": 1e-4,  # a larger one makes the model forget to call
                "trainer.total_training_steps": STEPS,
                "trainer.test_freq": SAVED,
                "trainer.save_freq": SAVED,
                "actor_rollout_ref.rollout.agent.num_workers": 2,
                "trainer.resume_mode": "resume_path" if found else "disable",
                "trainer.resume_from_path": homes[0] / f"global_step_{SAVED}",
            }
            async_training.run(home, overrides, step_s=0.02, KILLED_ONCE=str(homes[0] / "killed"))
        found.append(Job(read_run(home), logged(home)))
    first, resumed = found
    return first, Job(_with_restored(first.run, resumed.run), resumed.metrics)


def _with_restored(first: AsyncRun, resumed: AsyncRun) -> AsyncRun:
    """The second run with what it trained on and the first one had played."""
    used = {row["trace"] for row in resumed.trained} - {trace["id"] for trace in resumed.traces}
    traces = [trace for trace in first.traces if trace["id"] in used]
    seeds = {attempt["seed"] for trace in traces for turn in trace["turns"] for attempt in turn["attempts"]}
    for version in range(SAVED):
        (resumed.weights / f"weights_{version}.pt").symlink_to(first.weights / f"weights_{version}.pt")
    return replace(
        resumed,
        traces=resumed.traces + traces,
        generations=[each for each in first.generations if each["seed"] in seeds] + resumed.generations,
    )


def _write_rows(home: Path) -> None:
    """A batch for each seed, in the order in which they are issued, and validation's, which waits for nothing."""
    (row, *_) = pq.read_table(home / "rows.parquet").to_pylist()
    seeds = [*range(waiting_server.LAST + 1), waiting_server.FREE]
    rows = [_with(row, index, seed) for index, seed in enumerate(seed for seed in seeds for _ in range(ROWS))]
    pq.write_table(pa.Table.from_pylist(rows), home / "rows.parquet")
    pq.write_table(pa.Table.from_pylist(rows[-ROWS:]), home / "val.parquet")


def _with(row: dict[str, Any], index: int, seed: int) -> dict[str, Any]:
    extra = row["extra_info"]
    return {**row, "extra_info": {**extra, "index": index, "mcp": {**extra["mcp"], "seed": seed}}}


def test_each_batch_is_whole_and_the_killed_worker_was_replaced(jobs: tuple[Job, Job]) -> None:
    first, resumed = jobs
    assert sorted(first.metrics) == list(range(1, STEPS + 1))
    assert sorted(resumed.metrics) == list(range(SAVED + 1, STEPS + 1))
    for step in (*first.metrics.values(), *resumed.metrics.values()):
        assert (step["mcp/trajectories"], step["mcp/group_size/min"]) == (ROWS * SAMPLES, SAMPLES)
        assert (step["mcp/failed_share"], step["mcp/withdrawn_groups"]) == (0, 0)
    assert sum(step["mcp/workers_replaced"] for step in first.metrics.values()) == 1
    again = [trace["origin"] for trace in first.run.traces if trace["origin"]["attempt"]]
    # Half of the batch that is waited for, and of the one after it.
    assert {origin["attempt"] for origin in again} == {1} and len({origin["uid"] for origin in again}) == ROWS


def test_every_token_is_accounted_for(jobs: tuple[Job, Job]) -> None:
    for job in jobs:
        assert problems(job.run) == []


def test_steps_fell_into_calls_whose_trajectories_went_on_with_newer_weights(jobs: tuple[Job, Job]) -> None:
    for job in jobs:
        crossed = [
            trace
            for trace in job.run.traces
            if len(turns := trace["turns"]) > 1
            and turns[0]["tools"]
            and turns[0]["attempts"][-1]["weights_version"] < turns[1]["attempts"][0]["weights_version"]
        ]
        assert len(crossed) > ROWS * SAMPLES // 2


def test_validation_beside_training_measures_its_rows_only(jobs: tuple[Job, Job]) -> None:
    first, _ = jobs
    validated = [trace["origin"] for trace in first.run.traces if trace["origin"]["validate"]]
    assert {origin["step"] for origin in validated} == {SAVED, STEPS}
    assert all("val-core/echo/reward/mean@1" in first.metrics[step] for step in (SAVED, STEPS))


def test_a_restored_prompt_is_trained_on_once_and_its_attempts_are_told_apart(jobs: tuple[Job, Job]) -> None:
    first, resumed = jobs
    kept, later = first.trained(*range(1, SAVED + 1)), resumed.trained(*range(SAVED + 1, STEPS + 1))
    assert len(kept) == len(later) == ROWS * SAVED and kept.isdisjoint(later)
    played = {trace["id"] for trace in first.run.traces}
    groups = {trace["origin"]["uid"] for trace in first.run.traces}
    again = [trace["origin"] for trace in resumed.run.traces if trace["id"] not in played]
    again = [origin for origin in again if origin["uid"] in groups]
    assert len(again) == ROWS * SAMPLES and {origin["attempt"] for origin in again} == {2}
