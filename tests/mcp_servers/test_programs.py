"""The servers as programs: `python -m mcp_rollout.mcp_servers.X` over stdio, and what the command line refuses."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

pytestmark = pytest.mark.anyio
PROGRAMS = [
    ["mcp_rollout.mcp_servers.retail"],
    ["mcp_rollout.mcp_servers.user_simulator", "--scenarios", "mcp_rollout.mcp_servers.retail.users:scenario"],
    ["mcp_rollout.mcp_servers.calculator"],
]


@pytest.mark.parametrize("arguments", PROGRAMS, ids=[program[0] for program in PROGRAMS])
async def test_each_server_resets_and_releases_over_stdio(arguments: list[str]):
    task = "calculator-test-0000" if "calculator" in arguments[0] else "retail-test-0000"
    meta: Any = {"mcp-rollout/trajectory": "t1", "mcp-rollout/seed": 5}
    server = StdioServerParameters(command=sys.executable, args=["-m", *arguments])
    with anyio.fail_after(60):
        async with Client(server) as client:
            for tool, given in [("reset", {"task": task, "seed": 5}), ("release", {})]:
                result = await client.call_tool(tool, given, meta=meta)
                assert not result.is_error, result


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["mcp_rollout.mcp_servers.retail", "--http", "nowhere"], "is not HOST:PORT"),
        (["mcp_rollout.mcp_servers.retail", "--http", "0.0.0.0:0"], "MCP_SERVER_TOKEN must hold a token"),
        (["mcp_rollout.mcp_servers.user_simulator", "--scenarios", "missing.json"], "missing.json"),
        (["mcp_rollout.mcp_servers.user_simulator", "model", "--personas", "json:loads"], "USER_MODEL_URL is not set"),
        (["mcp_rollout.mcp_servers.filesystem_ops", "--directory", "missing"], "missing is not a directory"),
    ],
)
def test_bad_use_is_one_message_and_exit_status_two(arguments: list[str], complaint: str):
    ran = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert complaint in ran.stderr
    assert "Traceback" not in ran.stderr
