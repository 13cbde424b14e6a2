"""verl's adapter and AReaL's give their trainers the same: ids, masks, logprobs and scores, position by position.

Both play the same rows over the same real servers, with an engine whose every answer follows from the ids it is given.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from scripted_sglang import Script, scripted_sglang
from told import plain_program
from transformers import AutoTokenizer
from verl_config import composed

from lab.worlds.copies import raw_environment
from mcp_rollout.rollout.areal import cpu
from mcp_rollout.rollout.environment.parquet import read_rows
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.trace.store import read_traces
from mcp_rollout.rollout.types import Call
from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]
ROWS, RESPONSE_TOKENS, TURN_TOKENS = 6, 3000, 200
ORDERS = hermes.write(thinking="What did they order?", calls=[Call(name="list_orders")])
TEXTS = (
    ORDERS,
    ORDERS,
    hermes.write(calls=[Call(name="track_shipment", arguments={"order_id": "#1"}), Call(name="list_orders")]),
    hermes.write(thinking="Cancel.", calls=[Call(name="cancel_order", arguments={"order_id": "O1", "reason": ""})]),
    "<think>\nBroken.\n</think>\n\n<tool_call>\n{not json}\n</tool_call>",
    hermes.write(thinking="That is all I can do: " + "on and on. " * 60, content="It is on its way."),
    hermes.write(content="Naïve answer, 😀 done."),
    "",
)  # fmt: skip
ALONE: dict[str, Any] = {"user": None, "limits": {"assistant_turns": 4, "parallel_calls": 1, "wall_clock_s": 900}}
"""Without the customer, since a program answers once; the only message is in the prompt."""
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "several segments": {"thinking": {"context": "drop_previous"}},
    "masked": {
        "thinking": {"loss": "mask"},
        "filters": {"void": {"action": "mask"}, "repeated_calls": {"action": "mask", "times": 2}},
    },
    "a thinking budget": {"thinking": {"tokens_per_turn": 12}},
    "an agent of its own": {"agent": {"use": "mcp_rollout.rollout.agents.reflect:Reflect", "with": {"rounds": 1}}},
    "a function": ALONE
    | {"agent": {"use": "mcp_rollout.rollout.programs.program:Function", "with": {"use": "told:plain"}}},
    "a program": ALONE | {"agent": plain_program()},
}


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cpu.prepare()

        import mcp_rollout.rollout.areal.workflow
        import mcp_rollout.rollout.verl.agent_loop  # noqa: F401


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=32, layers=1)


@pytest.fixture(params=list(VARIANTS))
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory with the environment, its rows and its lock."""
    directory = tmp_path / "environments"
    directory.mkdir()
    raw = raw_environment("shop", slice="fitting")
    (directory / "shop.yaml").write_text(yaml.safe_dump(raw | VARIANTS[request.param]))
    data = ["data", "shop", "--environments-dir", str(directory), "-n", str(ROWS), "-o", str(tmp_path / "rows.parquet")]
    commands(data, ["tool-config", str(directory / "shop.yaml"), "-o", str(tmp_path / "lock.yaml")])
    return tmp_path


def commands(*given: list[str]) -> None:
    program, path = Path(sys.executable).with_name("mcp-rollout"), os.pathsep.join(sys.path)
    for command in given:
        subprocess.run([program, *command], check=True, env=os.environ | {"PYTHONPATH": path})


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A directory with a file of servers, the rows of a file of tasks over it, and the lock."""
    directory = tmp_path / "environments"
    directory.mkdir()
    servers, tasks = directory / "servers.json", tmp_path / "tasks.jsonl"
    servers.write_text(json.dumps({"mcpServers": {"notes": {"factory": "notes:notes_server", "scope": "process"}}}))
    kept, found = {"name": "colour", "text": "red"}, {"name": "read", "arguments": {"name": "colour"}, "returns": "red"}
    given = [{"prompt": f"{n}: which?", "setup": [{"name": "write", "arguments": kept}], "answer": "red"} for n in "ab"]
    given += [{"prompt": f"{n}: note red.", "check": [found]} for n in "cd"]
    tasks.write_text("".join(json.dumps(task) + "\n" for task in given))
    data = ["data", str(servers), "--tasks", str(tasks), "-o", str(tmp_path / "rows.parquet")]
    commands(data, ["tool-config", str(servers), "-o", str(tmp_path / "lock.yaml")])
    return tmp_path


class Client:
    """verl's `LLMServerClient`, with the same script."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        ids, logprobs, reason = self._script.say(prompt_ids, sampling_params["max_tokens"])
        return TokenOutput(token_ids=ids, log_probs=logprobs, stop_reason=reason, extra_fields={})


async def through_verl(
    home: Path, model: Path, rows: list[dict[str, Any]], script: Script, name: str, **settings: Path
) -> list[list[Any]]:
    """For each row the samples that verl gets.

    Args:
        name: of the directory with the traces.
        settings: further keys of our section.
    """
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from mcp_rollout.gateway.catalogue.tool_config import read_lock
    from mcp_rollout.rollout.environment.task import Task
    from mcp_rollout.rollout.verl.agent_loop import MCPAgentLoop
    from mcp_rollout.rollout.verl.runtime import WORKER

    mcp = "actor_rollout_ref.rollout.custom.mcp"
    config = composed(
        model,
        f"data.max_response_length={RESPONSE_TOKENS}",
        f"actor_rollout_ref.rollout.multi_turn.tool_config_path={home / 'lock.yaml'}",
        "trainer.use_v1=False",
        f"trainer.default_local_dir={home / name}",
        f"{mcp}.environments_dir={home / 'environments'}",
        f"++{mcp}.environment.limits.tokens_per_turn={TURN_TOKENS}",
        *[f"+{mcp}.{key}={value}" for key, value in settings.items()],
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    entries = read_lock(home / "lock.yaml")
    found: list[list[Any]] = []
    try:
        for row in rows:
            loop = MCPAgentLoop(
                trainer_config=DictConfigWrap(config),
                server_manager=Client(script),
                tokenizer=tokenizer,
                processor=None,
                dataset_cls=RLHFDataset,
                data_config=DictConfigWrap(config.data),
                hf_model_type="qwen3",
            )
            loop._lock = entries  # as from verl's tool list, which verl's worker builds
            assert Task.from_row(row)
            # The step is part of what cassettes find a trajectory by; AReaL begins with version 0.
            given = {**row, "raw_prompt": row["prompt"], "global_steps": 0, "session_id": 0}
            given |= {"index": row["extra_info"]["index"]}
            made = await loop.run({"temperature": 1.0, "logprobs": True}, **given)
            found.append(made if isinstance(made, list) else [made])
    finally:
        await WORKER.close()
    return found


def through_areal(
    home: Path, model: Path, rows: list[dict[str, Any]], script: Script, **settings: Path
) -> list[dict[str, torch.Tensor] | None]:
    """For each row the rows that AReaL gets. Its reward is the score, since a group of one has no other advantage."""
    from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig
    from areal.engine import RemoteSGLangEngine

    arguments = {
        "model": str(model),
        "gconfig": asdict(GenerationHyperparameters(max_new_tokens=TURN_TOKENS, max_tokens=100_000)),
        "mcp": {
            "environments_dir": str(home / "environments"),
            "trace_dir": str(home / "areal" / "traces"),
            "tool_config_path": str(home / "lock.yaml"),
            "response_tokens": RESPONSE_TOKENS,
            **{key: str(value) for key, value in settings.items()},
        },
    }
    config = InferenceEngineConfig(backend="sglang:d1", consumer_batch_size=ROWS, request_retries=1, request_timeout=60)
    with scripted_sglang(script) as address:
        engine = RemoteSGLangEngine(config)
        engine.initialize(addr=address, train_data_parallel_size=1)
        try:
            workflow = "mcp_rollout.rollout.areal.workflow.MCPWorkflow"
            tasks = [engine.submit(row, workflow, arguments) for row in rows]
            return [engine.wait_for_task(task, timeout=200) for task in tasks]
        finally:
            engine.destroy()


def assert_equal(verl: list[list[Any]], areal: list[dict[str, torch.Tensor] | None]) -> None:
    """Every position of every sample is the same, and there are many of them."""
    compared = 0
    for outputs, trajectory in zip(verl, areal, strict=True):
        trained = [output for output in outputs if 1 in output.response_mask]
        if not trained:
            assert trajectory is None
            continue
        assert trajectory is not None and len(trained) == len(trajectory["input_ids"])
        for number, output in enumerate(trained):
            length = int(trajectory["attention_mask"][number].sum())
            before = len(output.prompt_ids)
            ids, mask = output.prompt_ids + output.response_ids, [0] * before + output.response_mask
            logprobs = torch.tensor([0.0] * before + output.response_logprobs, dtype=torch.float32)
            assert trajectory["input_ids"][number, :length].tolist() == ids[:length]
            assert trajectory["loss_mask"][number, :length].tolist() == mask[:length]
            assert trajectory["logprobs"][number, :length].tolist() == logprobs[:length].tolist()
            assert trajectory["rewards"][number].item() == pytest.approx(output.reward_score, abs=1e-6)
            # AReaL's row ends with its last token in the loss.
            assert 1 not in mask[length:] and mask[length - 1] == 1
            compared += length
    assert compared > 1000


def said_by_agents(traces: Path) -> list[str]:
    return sorted(turn.agent_message for trace in read_traces(traces) for turn in trace.turns if turn.agent_message)


async def test_the_same_engine_and_servers_give_both_trainers_the_same(home: Path, model: Path) -> None:
    rows, tokenizer = list(read_rows(home / "rows.parquet")), AutoTokenizer.from_pretrained(model)
    verl = await through_verl(home, model, rows, Script(tokenizer, TEXTS), "verl")
    assert_equal(verl, through_areal(home, model, rows, Script(tokenizer, TEXTS)))
    said = said_by_agents(home / "verl" / "traces")
    assert said == said_by_agents(home / "areal" / "traces")
    # A program hears results, and ends with its answer; the agent of its own says something then.
    assert bool(said) == ("mcp_rollout.rollout.agents" in (home / "environments" / "shop.yaml").read_text())


async def test_the_tasks_of_a_file_are_prepared_and_checked_for_both_trainers(notes: Path, model: Path) -> None:
    rows, tokenizer = list(read_rows(notes / "rows.parquet")), AutoTokenizer.from_pretrained(model)

    def choose(read: str, turns: int) -> str:
        """Looks, and answers with what it read; writes where it is asked to, in one of two tasks what is asked for."""
        look = "which?" in read
        arguments = {"name": "colour"} if look else {"name": "colour", "text": "red" if "c: note" in read else "blue"}
        call = hermes.write(calls=[Call(name="read" if look else "write", arguments=arguments)])
        return call if not turns else "red" if "a: which?" in read else "There it is."

    verl = await through_verl(notes, model, rows, Script(tokenizer, choose=choose), "verl")
    assert_equal(verl, through_areal(notes, model, rows, Script(tokenizer, choose=choose)))
    for directory in (notes / "verl", notes / "areal"):
        traces = {trace.origin.row: trace for trace in read_traces(directory / "traces")}
        seen = [traces[row] for row in range(len(rows))]
        assert [trace.reward and trace.reward.score for trace in seen] == [1.0, 0.0, 1.0, 0.0]
        assert [(len(trace.setup), len(trace.checks)) for trace in seen] == [(1, 0), (1, 0), (0, 1), (0, 1)]
        assert [trace.turns[0].tools[0].text for trace in seen] == ["red", "red", "written", "written"]


async def test_a_recorded_engine_and_a_cassette_give_both_trainers_the_same(home: Path, model: Path) -> None:
    """verl records; then both replay, without servers and without a model."""
    rows, tokenizer = list(read_rows(home / "rows.parquet")), AutoTokenizer.from_pretrained(model)
    recorded = await through_verl(home, model, rows, Script(tokenizer, TEXTS), "verl", record=home / "cassettes")
    stored = {"replay": home / "cassettes", "recorded_engine": home / "verl" / "traces"}
    silent = Script(tokenizer, TEXTS)
    replayed = await through_verl(home, model, rows, silent, "again", **stored)
    assert [[kept(output) for output in outputs] for outputs in replayed] == [
        [kept(output) for output in outputs] for outputs in recorded
    ]
    assert_equal(recorded, through_areal(home, model, rows, silent, **stored))
    assert silent.log == []


def kept(output: Any) -> tuple[Any, ...]:
    return output.prompt_ids, output.response_ids, output.response_mask, output.response_logprobs, output.reward_score
