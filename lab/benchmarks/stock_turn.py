"""A part of `benchmarks turn`: a turn of our agent loop beside one of verl's stock `tool_agent`.

    python -m lab.benchmarks.stock_turn TRAJECTORIES TURNS

Both play the same conversation with the same tokenizer and the same canned completions: ours calls an MCP server over
stdio, stock a native Python function that does the same work. CPU time of this process, the tool's own share measured
apart and subtracted. Prints one JSON object; trajectories of both alternate.
"""

# verl has no types.
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import yaml

from lab.benchmarks.echo_server import STDIO_ARGUMENTS
from lab.benchmarks.runs import print_figures

ROOT = Path(__file__).parents[2]
TEXT = "plum " * 12
TOOL = {
    "type": "function",
    "function": {
        "name": "echo",
        "description": "Echo.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "What to say."}},
            "required": ["text"],
        },
    },
}


def echo(text: str, times: int = 1) -> str:
    return text * times


class CannedClient:
    """The same completion every turn; an answer at the last."""

    def __init__(self, call: list[int], answer: list[int], turns: int) -> None:
        self._call, self._answer, self._turns, self._asked = call, answer, turns, 0

    async def generate(self, **_: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        self._asked += 1
        ids = self._call if self._asked % self._turns else self._answer
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed")


async def main(trajectories: int, turns: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as home:
        return await measure(Path(home), trajectories, turns)


async def measure(home: Path, trajectories: int, turns: int) -> dict[str, Any]:
    from hydra import compose, initialize_config_dir
    from transformers import AutoTokenizer
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.tools.function_tool import FunctionTool
    from verl.tools.schemas import OpenAIFunctionToolSchema
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from mcp_rollout.rollout.formats import hermes
    from mcp_rollout.rollout.types import Call
    from mcp_rollout.rollout.verl.agent_loop import MCPAgentLoop
    from mcp_rollout.rollout.verl.runtime import WORKER
    from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

    (home / "environments").mkdir()
    servers = {"echo": {"command": sys.executable, "args": STDIO_ARGUMENTS, "tools": ["echo"]}}
    (home / "environments" / "echo.yaml").write_text(yaml.safe_dump({"servers": servers}))
    model = make_tiny_model(home / "model", hidden=32, layers=1)
    tokenizer = AutoTokenizer.from_pretrained(model)
    with initialize_config_dir(str(ROOT / "configs"), version_base=None):
        config = compose(
            "mcp_grpo",
            overrides=[
                "hydra.searchpath=[pkg://verl.trainer.config]",
                "engine=cpu",
                "data.train_files=none",
                f"actor_rollout_ref.model.path={model}",
                "trainer.use_v1=False",
                f"trainer.default_local_dir={home}",
                f"actor_rollout_ref.rollout.custom.mcp.environments_dir={home / 'environments'}",
                "actor_rollout_ref.rollout.multi_turn.max_tool_response_length=4096",
                f"actor_rollout_ref.rollout.multi_turn.max_assistant_turns={turns}",
            ],
        )
    texts = (hermes.write(thinking="hm", calls=[Call(name="echo", arguments={"text": TEXT})]), "Done.")
    call, answer = (tokenizer.encode(text + "<|im_end|>", add_special_tokens=False) for text in texts)
    common = {
        "trainer_config": DictConfigWrap(config),
        "tokenizer": tokenizer,
        "processor": None,
        "dataset_cls": RLHFDataset,
        "data_config": DictConfigWrap(config.data),
        "hf_model_type": "qwen3",
    }
    native = FunctionTool(name="echo", fn=echo, tool_schema=OpenAIFunctionToolSchema.model_validate(TOOL))
    mcp = {"environment": "echo", "task": "t", "seed": 1, "tools": None}
    row = {"raw_prompt": [{"role": "user", "content": "Shout."}], "extra_info": {"mcp": mcp}, "index": 0}

    async def stock() -> int:
        client = CannedClient(call, answer, turns)
        output = await ToolAgentLoop(**common, server_manager=client, tools=ToolListWrap([native])).run({}, **row)
        return output.num_turns

    async def ours() -> int:
        client = CannedClient(call, answer, turns)
        return (await MCPAgentLoop(**common, server_manager=client).run({}, **row)).num_turns

    await stock()
    await ours()
    cost: dict[str, list[float]] = {"stock": [], "ours": []}
    tools: dict[str, list[float]] = {"stock": [], "ours": []}
    gateway = (await WORKER.runtime.environments.get("echo")).gateway  # type: ignore[union-attr]
    async with gateway.lease(trajectory="bench", task="t", seed=1) as session:
        sides = (
            ("stock", stock, lambda: native.call({"text": TEXT})),
            ("ours", ours, lambda: session.call("echo", {"text": TEXT})),
        )
        for _ in range(trajectories):
            for name, play, tool in sides:
                began = time.process_time()
                await play()
                cost[name].append((time.process_time() - began) / turns)
                # Beside each trajectory: what a call costs depends on the load of the machine, too.
                tools[name].append(await cpu_per_call(tool, turns))
    await WORKER.close()
    total = {name: statistics.median(values) for name, values in cost.items()}
    tool = {name: statistics.median(values) for name, values in tools.items()}
    # The last turn answers and calls nothing.
    own = {name: total[name] - tool[name] * (turns - 1) / turns for name in total}
    return {
        "turns": turns,
        "trajectories": trajectories,
        "cpu_ms_per_turn": {name: round(1e3 * value, 3) for name, value in total.items()},
        "tool_cpu_ms_per_call": {name: round(1e3 * value, 3) for name, value in tool.items()},
        "own_cpu_ms_per_turn": {name: round(1e3 * value, 3) for name, value in own.items()},
        "ratio_own_to_stock": round(own["ours"] / own["stock"], 3),
    }


async def cpu_per_call(call: Any, times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        await call()
    return (time.process_time() - began) / times


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print_figures(lambda: asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]))))
