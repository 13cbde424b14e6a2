"""NAME keeps the contract, and its tools do what they say, to any MCP client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult

HERE = Path(__file__).parent
ENVIRONMENT = HERE / "NAME.yaml"


def mcp_rollout(*arguments: str | Path) -> Any:
    command = [sys.executable, "-m", "mcp_rollout", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_it_keeps_the_contract_and_its_expert_scores_full() -> None:
    assert mcp_rollout("check-env", ENVIRONMENT)["failed"] == []


def test_silence_does_not_pay(tmp_path: Path) -> None:
    silent = mcp_rollout("run", ENVIRONMENT, "--engine", "none", "-n", "10", "--out", tmp_path)
    assert silent["failed"] == 0 and silent["reward_mean"] <= 0.2


def test_the_counter_turns_and_says_no() -> None:
    async def play() -> tuple[Any, Any, CallToolResult]:
        arguments = [str(HERE / "server.py")]
        program = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
        async with Client(program) as client:

            async def call(tool: str, **arguments: Any) -> CallToolResult:
                meta: Any = {"mcp-rollout/trajectory": "test", "mcp-rollout/seed": 0}
                return await client.call_tool(tool, arguments, meta=meta)

            await call("reset", task="NAME-train-0000", seed=0)
            first, turned = await call("look"), await call("turn", steps=0)
            return first.structured_content, turned.structured_content, await call("turn", steps=99)

    first, turned, refused = anyio.run(play)
    assert first == turned
    assert refused.is_error and "the counter goes from 0 to 99" in str(refused.content)
