"""From rows to a GRPO update with the unmodified verl wheel, over stdio servers; every token compared with the engine.

One run serves all tests: three agents share its batches, validation included. The rollout loses the weights of step 2,
which step 3 samples with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from commands import mcp_rollout
from echo_task import CONVERSATION, ENVIRONMENT, echo_row
from engine_log import compare, read_generations, read_records, recorded
from taught_model import teach
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl_run import logged, train

from mcp_rollout.gateway.catalogue.tool_config import read_lock

pytestmark = [pytest.mark.verl, pytest.mark.timeout(900)]

STEPS, SAMPLES, TEMPERATURE = 3, 2, 0.5
SUPPORT = Path(__file__).parent / "support"
AGENTS = ("mcp_agent", "mcp_agent", "tool_agent", "single_turn_agent")

REWARD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):\n    return 0.5\n"


@dataclass(frozen=True)
class Run:
    home: Path
    output: str
    metrics: dict[int, dict[str, Any]]
    records: list[dict[str, Any]]
    generations: list[dict[str, Any]]

    def trained(self) -> list[dict[str, Any]]:
        return [record for record in self.records if not record["origin"]["validate"]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    home = tmp_path_factory.mktemp("path")
    environments = home / "environments"
    environments.mkdir()
    # With the directory as an argument that the server ignores: other tests have servers of the same program.
    server = ENVIRONMENT["servers"]["echo"]
    environment = {**ENVIRONMENT, "servers": {"echo": {**server, "args": [*server["args"], str(home)]}}}
    (environments / "echo.yaml").write_text(yaml.safe_dump(environment))
    (home / "reward.py").write_text(REWARD)
    pq.write_table(pa.Table.from_pylist([echo_row(agent, i) for i, agent in enumerate(AGENTS)]), home / "rows.parquet")
    assert mcp_rollout("tool-config", environments / "echo.yaml", "-o", home / "lock.yaml").status == 0
    tools = [entry.definition.openai_schema() for entry in read_lock(home / "lock.yaml")]
    overrides = {
        "data.train_files": home / "rows.parquet",
        "data.val_files": home / "rows.parquet",
        "data.train_batch_size": len(AGENTS),
        "data.shuffle": False,
        "data.max_prompt_length": 1024,
        "data.max_response_length": 320,
        "actor_rollout_ref.model.path": teach(home / "model", CONVERSATION, tools),
        "actor_rollout_ref.actor.optim.lr": 1e-3,
        "actor_rollout_ref.actor.entropy_coeff": 0.01,  # moves the weights where a whole group earns the same, too
        "actor_rollout_ref.rollout.name": "dropped_sync",
        "actor_rollout_ref.rollout.n": SAMPLES,
        "actor_rollout_ref.rollout.temperature": TEMPERATURE,
        "actor_rollout_ref.rollout.multi_turn.tool_config_path": home / "lock.yaml",
        "actor_rollout_ref.rollout.custom.mcp.environments_dir": environments,
        "++actor_rollout_ref.rollout.custom.mcp.environment.limits.tokens_per_turn": 64,
        "actor_rollout_ref.rollout.engine_kwargs.transformers_cpu.engine_log": home / "engine.jsonl",
        "reward.custom_reward_function.path": home / "reward.py",
        "actor_rollout_ref.rollout.custom.mcp.custom_reward": "ignore",  # it scores the rows of verl's agents
        "trainer.total_training_steps": STEPS,
        "trainer.val_before_train": True,
        "trainer.logger": "[console,file,tensorboard]",
        "+ray_kwargs.ray_init.runtime_env.env_vars.TENSORBOARD_DIR": home / "tensorboard",
    }
    done = train(home, overrides, VERL_USE_EXTERNAL_MODULES="dropped_sync", PYTHONPATH=str(SUPPORT))
    assert done.returncode == 0, done.stdout[-8000:]
    yield Run(
        home,
        done.stdout,
        logged(home),
        read_records(home / "traces"),
        read_generations(home / "engine.jsonl"),
    )


def test_every_trajectory_of_ours_left_one_record_with_its_step_and_phase(run: Run) -> None:
    origins = [(record["origin"]["step"], record["origin"]["validate"]) for record in run.records]
    ours = AGENTS.count("mcp_agent")
    assert sorted(origins) == [(0, True)] * ours + [
        (step, False) for step in range(1, STEPS + 1) for _ in range(ours * SAMPLES)
    ]
    assert len({record["id"] for record in run.records}) == len(run.records)


def test_trajectories_call_tools_and_meet_the_user_over_mcp(run: Run) -> None:
    texts = [event["text"] for record in run.records for turn in record["turns"] for event in turn["tools"]]
    users = [turn["user"]["message"] for record in run.records for turn in record["turns"] if turn["user"]]
    assert any(text.startswith("PLUM") for text in texts)
    assert "Shout pear 1." in users


def test_ids_mask_and_logprobs_equal_what_the_engine_logged(run: Run) -> None:
    assert compare(run.generations, recorded(run.records)).differences.keys() == {"left"}  # of verl's own agents


def test_stock_agents_share_the_batches_and_the_stock_tool_agent_reaches_the_same_server(run: Run) -> None:
    left = compare(run.generations, recorded(run.records)).left
    tokenizer = AutoTokenizer.from_pretrained(run.home / "model")
    prompts = [tokenizer.decode(generation["prompt_ids"]) for generation in left]
    assert len([prompt for prompt in prompts if "<tools>" not in prompt]) == 1 + STEPS * SAMPLES  # single_turn_agent
    answered = [prompt for prompt in prompts if "<tools>" in prompt and "<tool_response>\nPLUM" in prompt]
    assert answered, "no call of tool_agent came back"


def test_thinking_is_in_the_trace_and_in_the_loss(run: Run) -> None:
    spans = [(record, span) for record in run.records for span in record["spans"] if span["kind"] == "thinking"]
    assert spans
    for record, span in spans:
        assert set(record["loss_mask"][span["start"] : span["end"]]) == {1}


def test_trained_weights_reach_the_engine(run: Run) -> None:
    """Step 1 has the initial weights, of which the server started without a copy; step 2 has trained ones."""
    for step in (1, 2):
        assert run.metrics[step]["actor/grad_norm"] > 0
        assert run.metrics[step]["training/rollout_probs_diff_valid"] == 1
        assert run.metrics[step]["training/rollout_probs_diff_mean"] < 1e-4


def test_a_lost_weight_synchronisation_shows_in_that_number(run: Run) -> None:
    assert run.metrics[3]["training/rollout_probs_diff_mean"] > 1e-3


def test_traces_and_the_engines_log_name_the_weights_of_every_turn(run: Run) -> None:
    # The lost synchronisation is the one after step 2: step 3 is sampled with the weights of step 1.
    expected = {1: (0, 0), 2: (1, 1), 3: (1, 1)}
    for record in run.trained():
        for turn in record["turns"]:
            assert tuple(turn["weights_version"]) == expected[record["origin"]["step"]]
    assert {tuple(generation["weights_version"]) for generation in run.generations} == {(0, 0), (1, 1)}


@torch.inference_mode()
def test_log_probabilities_can_be_derived_again_from_the_model(run: Run) -> None:
    model = AutoModelForCausalLM.from_pretrained(run.home / "model").eval()
    first = [record for record in run.trained() if record["origin"]["step"] == 1]
    for record in first:
        ids, start = record["prompt_ids"] + record["response_ids"], len(record["prompt_ids"])
        logits = model(input_ids=torch.tensor([ids])).logits[0, start - 1 : -1]
        scaled = (logits / TEMPERATURE).log_softmax(-1)
        expected = scaled.gather(1, torch.tensor(record["response_ids"])[:, None]).squeeze(1)
        sampled = torch.tensor(record["loss_mask"]).bool()
        torch.testing.assert_close(torch.tensor(record["logprobs"])[sampled], expected[sampled], atol=1e-5, rtol=1e-5)


def test_our_metrics_reach_verls_loggers(run: Run) -> None:
    """The `file` logger, the console and tensorboard."""
    events = EventAccumulator(str(run.home / "tensorboard")).Reload()
    for name in ("mcp/turns", "mcp/tool_error_rate", "mcp/lease_wait_s", "mcp/failed_share", "mcp/reward/echo/letters"):
        shown = {event.step: event.value for event in events.Scalars(name)}
        assert shown == pytest.approx({step: run.metrics[step][name] for step in range(1, STEPS + 1)}), name
        assert f"{name}:" in run.output
    for step in range(1, STEPS + 1):
        assert run.metrics[step]["mcp/trajectories"] == AGENTS.count("mcp_agent") * SAMPLES
        assert run.metrics[step]["mcp/failed_share"] == 0
    assert run.metrics[0]["val-aux/echo/letters/mean@1"] > 0


def test_no_server_outlives_the_run(run: Run) -> None:
    left = [process for process in psutil.process_iter(["cmdline"]) if str(run.home) in (process.info["cmdline"] or [])]
    assert left == []
