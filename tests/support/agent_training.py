"""Two GRPO steps with agents through verl's v1 trainer, held against the engine's own log."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from engine_log import compare, read_generations, read_records, read_trained_rows, recorded, trained_differences
from taught_model import teach
from verl_run import logged, train

from mcp_rollout.gateway.catalogue.tool_config import read_lock
from mcp_rollout.rollout.environment.config import load_environment
from mcp_rollout.rollout.programs.trial import try_out
from mcp_rollout.rollout.tokens.chatml import ByteTokens

STEPS, SAMPLES = 2, 4
ROOT = Path(__file__).parents[2]
_COMMAND = Path(sys.executable).with_name("mcp-rollout")
Conversation = tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]
"""Messages and tools."""


@dataclass(frozen=True)
class Run:
    home: Path
    agents: Mapping[str, Mapping[str, Any]]
    metrics: dict[int, dict[str, Any]]
    records: list[dict[str, Any]]
    generations: list[dict[str, Any]]

    def of(self, environment: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["task"]["environment"] == environment]


def train_agents(
    home: Path,
    base: str,
    agents: Mapping[str, Mapping[str, Any]],
    conversation: Callable[[list[dict[str, Any]], list[dict[str, Any]]], Conversation],
    *,
    limits: Mapping[str, Any] | None = None,
    prompt_tokens: int = 1024,
    taught: Mapping[str, Any] | None = None,
    timeout_s: float = 800,
    **variables: str,
) -> Run:
    """Train a tiny model in an included environment, once with each agent; each batch has a row of each.

    Args:
        agents: By the name of its environment, the section `agent`.
        conversation: What the model learns by heart, of the first row's prompt and the world's tools.
        limits: Of the environments, beside their own.
        taught: Further arguments of `teach`.
        variables: Of verl's environment.
    """
    environments, lock = home / "environments", home / "lock.yaml"
    environments.mkdir()
    raw = yaml.safe_load((ROOT / "configs" / "environments" / f"{base}.yaml").read_text())
    raw["limits"] |= limits or {}
    tables: list[Any] = []
    for name, agent in agents.items():
        (environments / f"{name}.yaml").write_text(yaml.safe_dump(raw | {"agent": dict(agent)}))
        rows = home / f"{name}.parquet"
        written = ["--environments-dir", environments, "--split", "train", "-n", str(STEPS), "-o", rows]
        subprocess.run([_COMMAND, "data", name, *written], check=True)
        tables += [pq.read_table(rows)]
    mixed = pa.concat_tables(tables).take(
        [step + STEPS * which for step in range(STEPS) for which in range(len(agents))]
    )
    pq.write_table(mixed, home / "rows.parquet")
    subprocess.run([_COMMAND, "tool-config", *sorted(environments.glob("*.yaml")), "-o", lock], check=True)
    offered = {entry.definition.name: entry.definition.openai_schema() for entry in read_lock(lock)}
    messages, tools = conversation(mixed.slice(0, 1).to_pylist()[0]["prompt"], list(offered.values()))
    overrides = {
        "data.train_files": home / "rows.parquet",
        "data.val_files": home / "rows.parquet",
        "data.train_batch_size": len(agents),
        "data.shuffle": False,
        "data.max_prompt_length": prompt_tokens,
        "data.max_response_length": 640,
        "actor_rollout_ref.model.path": teach(home / "model", messages, tools, **(taught or {})),
        "actor_rollout_ref.actor.optim.lr": 1e-3,
        # The taught policy earns the same reward in a whole group; an update needs something to follow.
        "actor_rollout_ref.actor.entropy_coeff": 0.01,
        "actor_rollout_ref.rollout.n": SAMPLES,
        "actor_rollout_ref.rollout.multi_turn.tool_config_path": lock,
        "actor_rollout_ref.rollout.custom.mcp.environments_dir": environments,
        "++actor_rollout_ref.rollout.custom.mcp.environment.limits.tokens_per_turn": 64,
        "actor_rollout_ref.rollout.custom.mcp.record_trained": True,
        "actor_rollout_ref.rollout.engine_kwargs.transformers_cpu.engine_log": home / "engine.jsonl",
        "trainer.total_training_steps": STEPS,
    }
    done = train(home, overrides, timeout_s=timeout_s, **variables)
    assert done.returncode == 0, done.stdout[-8000:]
    return Run(home, agents, logged(home), read_records(home / "traces"), read_generations(home / "engine.jsonl"))


async def as_the_program_shows_it(environment: str, home: Path) -> Conversation:
    """The first test task with the expert's first call and its answer, as the program shows them to the policy."""
    loaded = load_environment(environment, home / "environments")
    trace = (await try_out(loaded)).trace
    assert trace.failure is None and not trace.earlier, trace.failure
    listed = re.search(r"<tools>\n(.*?)\n</tools>", ByteTokens().decode(trace.prompt_ids), re.DOTALL)
    assert listed is not None
    tools = [json.loads(line) for line in listed[1].splitlines()]
    names = [tool["function"]["name"] for tool in tools]
    called = next(at for at, message in enumerate(trace.messages) if message.get("tool_calls"))
    for call in trace.messages[called]["tool_calls"]:
        # The trace has the world's name, before which programs put a server's.
        call["function"]["name"] = next(name for name in names if name.endswith(call["function"]["name"]))
    return [*trace.messages[: called + 2], trace.messages[-1]], tools


def assert_trained_in_each_step(run: Run) -> None:
    assert sorted(run.metrics) == list(range(1, STEPS + 1))
    for step, metrics in run.metrics.items():
        assert metrics["mcp/failed_share"] == 0 and metrics["actor/grad_norm"] > 0
        for name, agent in run.agents.items():
            played = [record for record in run.of(name) if record["origin"]["step"] == step]
            assert len(played) == SAMPLES
            assert all(record["agent"] == {"with": {}, **agent} for record in played)


def assert_every_token_is_the_engines_or_rendered(
    records: Sequence[dict[str, Any]], generations: Sequence[dict[str, Any]]
) -> None:
    """Every sample has what the engine saw and sampled, with what it sampled in the loss, and nothing is left over."""
    assert compare(generations, recorded(records)).differences == {}


def assert_trained_on(home: Path, records: Sequence[dict[str, Any]]) -> None:
    """The trainer's batches, by its side files, are the records' samples: ids, mask and sampled log-probabilities."""
    assert trained_differences(read_trained_rows(home / "traces"), records) == {}
