"""AReaL's own trainer and executor train on this CPU over a shop; its samples against SGLang's own log."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from agent_training import as_the_program_shows_it
from areal_run import AREAL_PYTHON, needs_areal, train_areal
from echo_task import CONVERSATION, ENVIRONMENT, echo_row
from engine_log import compare, read_records, recorded, samples_of
from sglang_server import requests_logged, running_sglang
from taught_model import teach
from told import plain_program

from lab.worlds import WORLDS
from lab.worlds.copies import raw_environment
from mcp_rollout.gateway.catalogue.tool_config import read_lock
from mcp_rollout.rollout.areal.samples import group_advantages
from mcp_rollout.rollout.environment.parquet import read_rows

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(2400), needs_areal]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
COMMAND = Path(sys.executable).with_name("mcp-rollout")
ROWS, SAMPLES, STEPS, LOST = 3, 4, 3, 2
BIAS = 0.5
"""AReaL adds it to each reward, so that groups with equal rewards change the weights, too."""


@dataclass(frozen=True)
class Run:
    home: Path
    output: str
    trained: list[dict[str, torch.Tensor]]
    """What AReaL had in each step."""
    records: list[dict[str, Any]]
    generations: list[dict[str, Any]]
    """What SGLang logged."""

    def rows(self, step: int) -> Iterator[dict[str, Any]]:
        """The rows of a step without their padding; log-probabilities are those of the token itself."""
        batch = self.trained[step]
        # The trainer's are at the position before the token that they are about.
        trainer = torch.roll(batch["prox_logp"], 1, dims=-1)
        for number, attended in enumerate(batch["attention_mask"].bool()):
            yield {
                **{
                    key: batch[key][number][attended].tolist()
                    for key in ("input_ids", "loss_mask", "logprobs", "versions")
                },
                "trainer": trainer[number][attended].tolist(),
                "reward": batch["rewards"][number].item(),
            }

    def differences(self, step: int, *, only_version: int | None = None) -> list[float]:
        """By how much the trainer's log-probability of each trained token differs from the engine's."""
        return [
            abs(trainer - engine)
            for row in self.rows(step)
            for trainer, engine, kept, version in zip(
                row["trainer"], row["logprobs"], row["loss_mask"], row["versions"], strict=True
            )
            if kept and only_version in (None, version)
        ]


def finished(home: Path, overrides: dict[str, object], model: Path, **environment: str) -> Run:
    """A run with one process per rank, which has ended well."""
    (home / "watched").mkdir(parents=True)
    with running_sglang(model, home / "sglang", python=AREAL_PYTHON) as address:
        done = train_areal(
            home,
            {
                "actor.path": model,
                "total_train_steps": STEPS,
                "train_dataset.batch_size": ROWS,
                "train_dataset.shuffle": False,
                "gconfig.n_samples": SAMPLES,
                "gconfig.max_new_tokens": 64,
                "mcp.prompt_tokens": 1024,
                "mcp.response_tokens": 320,
                "actor.reward_bias": BIAS,
                "actor.optimizer.lr": 2e-3,  # one step must show clearly in the next one's probabilities
                **overrides,
            },
            server=address.removeprefix("http://"),
            module="watched_training",
            WATCHED_DIR=str(home / "watched"),
            PYTHONPATH=str(HERE),
            **environment,
        )
    assert done.returncode == 0, done.stdout[-8000:]
    trained = [torch.load(path) for path in sorted((home / "watched").glob("*.pt"))]
    traces = home / "mcp_rollout" / "grpo" / "traces"
    # Its own first request is a text.
    generations = [each for each in requests_logged(home / "sglang" / "requests") if each["prompt_ids"]]
    # AReaL has begun further trajectories, and ended them with the engine.
    records = [record for record in read_records(traces) if record["failure"] is None]
    return Run(home, done.stdout, trained, records, generations)


def command(*arguments: object) -> None:
    subprocess.run([COMMAND, *map(str, arguments)], check=True)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Rows and lock of `shop:slice=fitting`, and a model that has learnt one of its conversations by heart."""
    home = tmp_path_factory.mktemp("shop")
    fitting = WORLDS / "shop.yaml:slice=fitting"
    command("data", fitting, "--split", "train", "-n", ROWS * STEPS, "-o", home / "rows.parquet")
    command("tool-config", fitting, "-o", home / "lock.yaml")
    command("run", fitting, "--engine", "expert", "--split", "train", "-n", 1, "--out", home / "expert")
    (expert,) = read_records(home / "expert")
    tools = [entry.definition.openai_schema() for entry in read_lock(home / "lock.yaml")]
    first = next(iter(read_rows(home / "rows.parquet")))["prompt"]
    said = expert["messages"][len(first) :]
    return {
        "model": teach(home / "model", [*first, *said], tools),
        "train_dataset.path": home / "rows.parquet",
        "mcp.environments_dir": WORLDS,
        "mcp.tool_config_path": home / "lock.yaml",
    }


@pytest.fixture(scope="module")
def on_policy(shop: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Each step waits for its weights, which come over disk; the engine never gets those of version 2."""
    overrides = {**shop, "rollout.max_head_offpolicyness": 0, "actor.weight_update_mode": "disk"}
    return finished(tmp_path_factory.mktemp("disk"), overrides, overrides.pop("model"), LOST_VERSION=str(LOST))


@pytest.fixture(scope="module")
def off_policy(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Weights come over gloo while others sample; trajectories have several segments."""
    home = tmp_path_factory.mktemp("gloo")
    (home / "environments").mkdir()
    environment = ENVIRONMENT | {"thinking": {"context": "drop_previous"}}
    (home / "environments" / "echo.yaml").write_text(yaml.safe_dump(environment))
    rows = [echo_row("mcp_agent", index) for index in range(ROWS * 4)]
    pq.write_table(pa.Table.from_pylist(rows), home / "rows.parquet")
    command("tool-config", home / "environments" / "echo.yaml", "-o", home / "lock.yaml")
    tools = [entry.definition.openai_schema() for entry in read_lock(home / "lock.yaml")]
    overrides: dict[str, object] = {
        "train_dataset.path": home / "rows.parquet",
        "mcp.environments_dir": home / "environments",
        "mcp.tool_config_path": home / "lock.yaml",
        "actor.weight_update_mode": "xccl",
        "rollout.max_head_offpolicyness": 2,
        "rollout.max_concurrent_rollouts": ROWS * 2,
        "total_train_steps": 4,
    }
    return finished(home / "run", overrides, teach(home / "model", CONVERSATION, tools))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two steps whose trajectories a program plays, in a process for each."""
    home = tmp_path_factory.mktemp("program")
    (home / "environments").mkdir()
    raw = raw_environment("shop", slice="fitting")
    limits = {"assistant_turns": 4, "parallel_calls": 1, "wall_clock_s": 900}
    written = raw | {"agent": plain_program(), "user": None, "limits": limits}
    (home / "environments" / "shop.yaml").write_text(yaml.safe_dump(written))
    rows, lock = home / "rows.parquet", home / "lock.yaml"
    command("data", "shop", "--environments-dir", home / "environments", "--split", "test", "-n", ROWS * 2, "-o", rows)
    command("tool-config", home / "environments" / "shop.yaml", "-o", lock)
    messages, tools = anyio.run(as_the_program_shows_it, "shop", home)
    overrides: dict[str, object] = {
        "train_dataset.path": rows,
        "mcp.environments_dir": home / "environments",
        "mcp.tool_config_path": lock,
        "mcp.prompt_tokens": 4096,
        "actor.weight_update_mode": "disk",
        "rollout.max_head_offpolicyness": 0,
        "total_train_steps": 2,
    }
    return finished(home / "run", overrides, teach(home / "model", messages, tools, steps=300))


def test_a_program_is_trained_on_whole_groups_with_one_prompt_for_all_siblings(program: Run) -> None:
    assert [batch["input_ids"].shape[0] for batch in program.trained] == [ROWS * SAMPLES] * 2
    played = [record for record in program.records if record["origin"]["step"] < 2]
    assert all(record["agent"] == plain_program() for record in played)
    assert any(event["server"] == "retail" for each in played for turn in each["turns"] for event in turn["tools"])
    groups = {(each["origin"]["uid"], tuple(each["prompt_ids"])) for each in played}
    assert len(groups) == len({uid for uid, _ in groups}) == ROWS * 2
    for step, batch in enumerate(program.trained):
        assert max(program.differences(step)) < 1e-4 and batch["advantages"].abs().max() > 0


def test_three_steps_train_on_whole_groups(on_policy: Run) -> None:
    assert len(on_policy.trained) == STEPS
    assert all(batch["input_ids"].shape[0] == ROWS * SAMPLES for batch in on_policy.trained)
    played = Counter(record["origin"]["step"] for record in on_policy.records)
    assert all(played[step] == ROWS * SAMPLES for step in range(STEPS))


@pytest.mark.parametrize("name", ["on_policy", "off_policy", "program"])
def test_every_trained_position_is_what_sglang_logged(name: str, request: pytest.FixtureRequest) -> None:
    """Ids, mask and log-probabilities, derived from the server's log by code that shares nothing with the adapter."""
    run: Run = request.getfixturevalue(name)
    # Others were begun after the last update, or ended with the engine.
    assert compare(run.generations, recorded(run.records)).differences.keys() <= {"left"}
    expected: Counter[Any] = Counter()
    for record in run.records:
        if name != "off_policy" and record["origin"]["step"] >= len(run.trained):
            continue
        for sample in samples_of(record):
            mask, before = sample["loss_mask"], len(sample["prompt_ids"])
            end = before + len(mask) - mask[::-1].index(1)
            ids, logprobs = sample["prompt_ids"] + sample["response_ids"], [0.0] * before + sample["logprobs"]
            expected[tuple(tuple(values[:end]) for values in (ids, [0] * before + mask, logprobs))] += 1
    trained: Counter[Any] = Counter()
    for step in range(len(run.trained)):
        for row in run.rows(step):
            trained[tuple(row["input_ids"]), tuple(row["loss_mask"]), tuple(row["logprobs"])] += 1
    rounded = Counter({(ids, mask, single(logprobs)): n for (ids, mask, logprobs), n in expected.items()})
    # Off-policy, trajectories that were played last are trained by no step.
    assert trained <= rounded and (name == "off_policy" or trained == rounded)


def single(logprobs: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(torch.tensor(logprobs, dtype=torch.float32).tolist())


def test_rewards_are_the_advantages_of_each_trajectory_in_its_group(on_policy: Run) -> None:
    groups: defaultdict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for record in [record for record in on_policy.records if record["origin"]["step"] < STEPS]:
        groups[record["origin"]["step"], record["origin"]["row"]].append(record)
    assert len(groups) == STEPS * ROWS
    expected: defaultdict[int, list[float]] = defaultdict(list)
    for (step, _), group in groups.items():
        expected[step] += group_advantages([record["reward"]["score"] for record in group])
    for step in range(STEPS):
        rewards = [row["reward"] for row in on_policy.rows(step)]
        assert sorted(rewards) == pytest.approx(sorted(expected[step]), abs=1e-5)


@pytest.mark.parametrize("name", ["on_policy", "off_policy", "program"])
def test_areal_gives_every_trained_token_its_rows_reward(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    for batch in run.trained:
        mask = torch.roll(batch["loss_mask"], -1, dims=-1).bool()
        expected = (batch["rewards"] + BIAS).unsqueeze(1).expand_as(batch["advantages"])
        assert torch.allclose(batch["advantages"][mask], expected[mask], atol=1e-5)


def test_the_engine_samples_with_the_weights_that_the_trainer_has(on_policy: Run) -> None:
    for step in range(LOST):
        assert max(on_policy.differences(step)) < 1e-4


def test_a_lost_weight_update_shows_in_the_log_probabilities(on_policy: Run) -> None:
    differences = on_policy.differences(LOST)
    assert sum(differences) / len(differences) > 1e-3


def test_versions_name_the_weights_behind_each_token(off_policy: Run) -> None:
    """Tokens of the trainer's own version have its log-probabilities, also after updates over gloo."""
    behind: set[int] = set()
    for step in range(len(off_policy.trained)):
        own = off_policy.differences(step, only_version=step)
        assert not own or max(own) < 1e-4
        for row in off_policy.rows(step):
            behind |= {step - version for version, kept in zip(row["versions"], row["loss_mask"], strict=True) if kept}
    # AReaL bounds how many groups begin; one that later groups overtake is trained with older weights than that.
    assert min(behind) >= 0 and max(behind) >= 1
    stale = [value for step in (1, 2, 3) for value in off_policy.differences(step, only_version=0)]
    assert sum(stale) / len(stale) > 1e-4


def test_trajectories_of_several_segments_are_trained(off_policy: Run) -> None:
    """Each segment of a trajectory is a row of its own; one that ends before its second thought has one."""
    trained = {tuple(row["input_ids"]) for step in range(len(off_policy.trained)) for row in off_policy.rows(step)}
    segments = [[ids_in_loss(sample) for sample in samples_of(record)] for record in off_policy.records]
    several = [each for each in segments if len(each) > 1]
    assert len(several) >= len(segments) / 4
    assert sum(trained.issuperset(each) for each in several) >= len(several) / 2


def ids_in_loss(segment: dict[str, Any]) -> tuple[int, ...]:
    """A segment's ids up to its last token in the loss."""
    mask = segment["loss_mask"]
    return (*segment["prompt_ids"], *segment["response_ids"][: len(mask) - mask[::-1].index(1)])


def test_a_single_controller_trains_the_same_way(shop: dict[str, Any], tmp_path: Path) -> None:
    """It starts SGLang and its workers itself, builds the workflow for each group, and leaves nothing behind."""
    shop = dict(shop)
    overrides = {
        "actor.path": shop.pop("model"),
        **shop,
        "total_train_steps": STEPS,
        "train_dataset.batch_size": ROWS,
        "gconfig.n_samples": SAMPLES,
        "gconfig.max_new_tokens": 64,
        "mcp.prompt_tokens": 1024,
        "mcp.response_tokens": 320,
        "rollout.max_head_offpolicyness": 0,
    }
    done = train_areal(tmp_path, overrides)
    assert done.returncode == 0, done.stdout[-8000:]
    traces = tmp_path / "mcp_rollout" / "grpo" / "traces"
    records = read_records(traces)
    played = Counter(record["origin"]["step"] for record in records if record["failure"] is None)
    assert all(played[step] == ROWS * SAMPLES for step in range(STEPS))
    assert {record["failure"]["kind"] for record in records if record["failure"]} <= {"cancelled"}
    assert len(list(traces.glob("*.jsonl"))) == 1  # of one process, whose gateways outlive each workflow
    left = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"]) if names(process, tmp_path)]
    assert left == []


def names(process: psutil.Process, home: Path) -> bool:
    return any(str(home) in part for part in (process.info["cmdline"] or []))
