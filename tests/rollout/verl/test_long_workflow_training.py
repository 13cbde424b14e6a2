"""A GRPO step through verl's v1 trainer with examples/long_workflow.py, by the commands of docs/agents.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from engine_log import read_generations
from taught_model import teach
from transformers import AutoTokenizer
from verl_run import logged, train

from mcp_rollout.gateway.catalogue.tool_config import read_lock
from mcp_rollout.mcp_servers.gsm8k_tools.server import Attempts, problem
from mcp_rollout.rollout.environment.parquet import read_rows
from mcp_rollout.rollout.trace.store import read_traces

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[3]
COMMAND = Path(sys.executable).with_name("mcp-rollout")
ROWS, SAMPLES = 2, 4


def test_the_example_trains(tmp_path: Path) -> None:
    """Conversations have calls and replies of the live user; the server's score is that of the first row's step."""
    rows, lock, engine_log = tmp_path / "rows.parquet", tmp_path / "tools.yaml", tmp_path / "engine.jsonl"
    written = ["--agent", "long_workflow", "--split", "train", "-n", str(ROWS), "-o", rows]
    subprocess.run([COMMAND, "data", "gsm8k_tools", *written], check=True)
    subprocess.run([COMMAND, "tool-config", "gsm8k_tools", "-o", lock], check=True)
    first = next(iter(read_rows(rows)))
    mcp = first["extra_info"]["mcp"]
    asked = problem(mcp["task"], mcp["seed"])
    step, wrong, right = asked.story.steps[0], f"Answer: {asked.answer + 1}", f"Answer: {asked.answer}"
    call = {"function": {"name": "calculate", "arguments": {"expression": step.expression}}}
    conversation = [
        *first["prompt"],
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": str(step.value)},
        {"role": "assistant", "content": wrong},
        {"role": "user", "content": Attempts(problem=asked).reply(wrong).message},
        {"role": "assistant", "content": right},
    ]
    tools = [entry.definition.openai_schema() for entry in read_lock(lock)]
    model = teach(tmp_path / "model", conversation, tools)
    overrides = {
        "data.train_files": rows,
        "data.val_files": rows,
        "data.train_batch_size": ROWS,
        "data.max_prompt_length": 1024,
        "data.max_response_length": 640,
        "actor_rollout_ref.model.path": model,
        # The taught policy earns the same reward in a whole group; an update needs something to follow.
        "actor_rollout_ref.actor.entropy_coeff": 0.01,
        "actor_rollout_ref.rollout.n": SAMPLES,
        "actor_rollout_ref.rollout.multi_turn.tool_config_path": lock,
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": "examples/long_workflow.yaml",
        "actor_rollout_ref.rollout.engine_kwargs.transformers_cpu.engine_log": engine_log,
        "trainer.total_training_steps": 1,
    }
    done = train(tmp_path, overrides, PYTHONPATH=str(ROOT / "examples"))
    assert done.returncode == 0, done.stdout[-8000:]
    metrics = logged(tmp_path)[1]
    assert 0 < metrics["critic/score/mean"] < 1 and metrics["actor/grad_norm"] > 0
    assert metrics["mcp/trajectories"] == ROWS * SAMPLES and metrics["mcp/failed_share"] == 0.0
    assert metrics["mcp/score/mean"] == pytest.approx(metrics["critic/score/mean"])
    traces = list(read_traces(tmp_path / "traces"))
    assert len(traces) == ROWS * SAMPLES and all(trace.reward and trace.turns for trace in traces)
    tokenizer = AutoTokenizer.from_pretrained(model)
    contexts = [tokenizer.decode(each["prompt_ids"]) for each in read_generations(engine_log)]
    assert sum("<tool_response>" in context for context in contexts) >= ROWS * SAMPLES / 2
    assert sum("not right" in context for context in contexts) >= ROWS * SAMPLES / 2
