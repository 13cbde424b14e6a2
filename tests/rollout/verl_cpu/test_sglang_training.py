"""verl's own SGLang rollout trains `mcp_grpo` on this CPU; its traces against SGLang's log and our own replica.

In `mcp_colocate_async` too, which interrupts generations: each trained token, from the weights that its trace names.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import async_training
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from async_check import AsyncRun, problems, read_run, turns_of
from async_faults import FAULTS, Fault, broken, seed_used_twice
from echo_task import CONVERSATION, ENVIRONMENT, echo_row
from engine_log import compare, read_records, recorded
from sglang_server import SGLANG_PYTHON, needs_sglang, requests_logged
from taught_model import teach
from verl_run import logged, train

from mcp_rollout.gateway.catalogue.tool_config import read_lock

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(3600), needs_sglang]

SUPPORT = Path(__file__).parents[2] / "support"
ROWS, SAMPLES, STEPS = 2, 4, 3
ASYNC_ROWS, ASYNC_SAMPLES, ASYNC_STEPS = 4, 8, 4
LOG = "actor_rollout_ref.rollout.engine_kwargs.sglang.log_requests"


@dataclass(frozen=True)
class Run:
    metrics: dict[int, dict[str, Any]]
    records: list[dict[str, Any]]

    def played(self, *, validate: bool) -> list[dict[str, Any]]:
        found = [record for record in self.records if record["origin"]["validate"] is validate]
        return sorted(found, key=lambda record: record["origin"]["row"])


@dataclass(frozen=True)
class SGLangRun(Run):
    home: Path
    generations: list[dict[str, Any]]
    """What SGLang logged."""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Overrides that both runs share: rows, environment, a model that was taught one conversation."""
    home = tmp_path_factory.mktemp("task")
    environments = home / "environments"
    environments.mkdir()
    (environments / "echo.yaml").write_text(yaml.safe_dump(ENVIRONMENT))
    pq.write_table(pa.Table.from_pylist([echo_row("mcp_agent", i) for i in range(ROWS)]), home / "rows.parquet")
    cli = [Path(sys.executable).with_name("mcp-rollout"), "tool-config", environments / "echo.yaml"]
    subprocess.run([*cli, "-o", home / "lock.yaml"], check=True)
    tools = [entry.definition.openai_schema() for entry in read_lock(home / "lock.yaml")]
    return {
        "data.train_files": home / "rows.parquet",
        "data.train_batch_size": ROWS,
        "data.max_prompt_length": 1024,
        "data.max_response_length": 320,
        "actor_rollout_ref.model.path": teach(home / "model", CONVERSATION, tools),
        "actor_rollout_ref.actor.optim.lr": 2e-3,  # one step must show clearly in the next one's probabilities
        "actor_rollout_ref.actor.entropy_coeff": 0.01,  # moves the weights where a whole group earns the same, too
        "actor_rollout_ref.rollout.n": SAMPLES,
        "actor_rollout_ref.rollout.multi_turn.tool_config_path": home / "lock.yaml",
        "actor_rollout_ref.rollout.custom.mcp.environments_dir": environments,
        "++actor_rollout_ref.rollout.custom.mcp.environment.limits.tokens_per_turn": 64,
        "trainer.total_epochs": STEPS,
        "trainer.val_before_train": True,  # greedy
    }


@pytest.fixture(scope="module")
def sglang(task: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> SGLangRun:
    """Three GRPO steps in one run; the rollout loses the weights of step 2, which step 3 samples with."""
    home = tmp_path_factory.mktemp("sglang")
    overrides = {
        "engine": "sglang_cpu",
        "trainer.total_training_steps": STEPS,
        LOG: True,
        f"{LOG}_target": f"[{home / 'requests'}]",
        **task,
    }
    # Socket paths are limited to 107 bytes.
    environment = {"VERL_USE_EXTERNAL_MODULES": "dropped_sync", "PYTHONPATH": str(SUPPORT), "RAY_TMPDIR": "/tmp"}
    done = train(home, overrides, python=SGLANG_PYTHON, timeout_s=1700, **environment)
    assert done.returncode == 0, done.stdout[-8000:]
    return SGLangRun(logged(home), read_records(home / "traces"), home, requests_logged(home / "requests"))


@pytest.fixture(scope="module")
def transformers(task: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("transformers")
    done = train(home, {"engine": "cpu", "trainer.total_training_steps": 1, **task})
    assert done.returncode == 0, done.stdout[-8000:]
    return Run(logged(home), read_records(home / "traces"))


def test_every_step_trains_on_what_sglang_sampled(sglang: SGLangRun) -> None:
    steps = [record["origin"]["step"] for record in sglang.played(validate=False)]
    assert sorted(steps) == [step for step in range(1, STEPS + 1) for _ in range(ROWS * SAMPLES)]
    for step in range(1, STEPS + 1):
        assert sglang.metrics[step]["actor/grad_norm"] > 0
        assert sglang.metrics[step]["mcp/failed_share"] == 0


def test_sglang_samples_with_the_weights_that_the_trainer_has(sglang: SGLangRun) -> None:
    """Step 1 has the initial weights, of which the server started without a copy; step 2 has trained ones."""
    for step in (1, 2):
        assert sglang.metrics[step]["training/rollout_probs_diff_valid"] == 1
        assert sglang.metrics[step]["training/rollout_probs_diff_mean"] < 1e-4


def test_a_lost_weight_synchronisation_shows_in_that_number(sglang: SGLangRun) -> None:
    assert sglang.metrics[3]["training/rollout_probs_diff_mean"] > 1e-3


def test_ids_mask_and_logprobs_equal_what_sglang_logged(sglang: SGLangRun) -> None:
    assert compare(sglang.generations, recorded(sglang.records)).differences == {}


def test_greedy_trajectories_are_those_of_the_transformers_replica(sglang: SGLangRun, transformers: Run) -> None:
    """The same model and no chance: every token, span, call and result; what differs is when, and the rounding."""
    pairs = list(zip(sglang.played(validate=True), transformers.played(validate=True), strict=True))
    assert len(pairs) == ROWS
    for ours, theirs in pairs:
        assert any(turn["tools"] for turn in ours["turns"])
        for key in ("prompt_ids", "response_ids", "loss_mask", "spans", "stop_reason"):
            assert ours[key] == theirs[key], key
        assert ours["logprobs"] == pytest.approx(theirs["logprobs"], abs=1e-4)


def test_traces_have_the_form_that_the_transformers_replica_gives_them(sglang: SGLangRun, transformers: Run) -> None:
    pairs = zip(sglang.played(validate=True), transformers.played(validate=True), strict=True)
    for ours, theirs in pairs:
        assert form(ours) == form(theirs)
    for record in sglang.played(validate=False):
        assert record.keys() == transformers.records[0].keys()


def form(value: Any) -> Any:
    """Keys and types of a JSON value, whatever the numbers and texts."""
    if isinstance(value, dict):
        return {key: form(item) for key, item in value.items()}
    if isinstance(value, list):
        return [form(item) for item in value] if any(isinstance(item, (dict, list)) for item in value) else len(value)
    return type(value).__name__


def test_nothing_of_sglang_outlives_the_run(sglang: SGLangRun) -> None:
    names = [process.info["name"] for process in psutil.process_iter(["name", "environ"]) if mentions(process, sglang)]
    assert names == []


def mentions(process: psutil.Process, run: SGLangRun) -> bool:
    return any(str(run.home) in value for value in (process.info["environ"] or {}).values())


@pytest.fixture(scope="module")
def colocate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an asynchronous run, in which more is asked of SGLang than it decodes at a time."""
    home = tmp_path_factory.mktemp("colocate")
    overrides = async_training.prepare(home, rows=ASYNC_ROWS, samples=ASYNC_SAMPLES)
    own = {
        "engine": "sglang_cpu",
        "actor_rollout_ref.rollout.max_num_seqs": 8,
        "++actor_rollout_ref.rollout.custom.mcp.environment.max_sessions": 16,
        "trainer.total_training_steps": ASYNC_STEPS,
        "trainer.test_freq": 2,
        LOG: True,
        f"{LOG}_target": f"[{home / 'requests'}]",
    }
    async_training.run(home, overrides | own, python=SGLANG_PYTHON)
    return home


def async_run(home: Path) -> AsyncRun:
    return read_run(home, requests_logged(home / "requests"))


def test_interrupted_generations_go_on_and_each_token_has_the_version_that_sampled_it(colocate: Path) -> None:
    found = async_run(colocate)
    turns = turns_of(found)
    assert len(turns) >= 200 and sum(len(turn["attempts"]) > 1 for turn in turns) >= 5
    trained = [row for row in found.trained if row["dropped"] is None]
    assert len({version for row in trained for version in row["versions"]}) >= 3
    assert any(len(set(row["versions"])) > 1 for row in trained)
    assert problems(found) == []


def test_batches_of_an_asynchronous_run_are_whole(colocate: Path) -> None:
    metrics = logged(colocate)
    assert sorted(metrics) == list(range(1, ASYNC_STEPS + 1))
    for step in metrics.values():
        counted = (step["mcp/trajectories"], step["mcp/group_size/min"], step["mcp/withdrawn_groups"])
        assert counted == (ASYNC_ROWS * ASYNC_SAMPLES, ASYNC_SAMPLES, 0)
        assert step["actor/grad_norm"] > 0 and step["mcp/failed_share"] == 0


@pytest.mark.parametrize(
    "fault", [each for each in FAULTS if each is not seed_used_twice], ids=lambda each: each.__name__
)
def test_the_check_of_an_asynchronous_run_finds(colocate: Path, fault: Fault) -> None:
    assert problems(broken(async_run(colocate), fault))
