"""MCP clients of other projects, unchanged, each at an address of `serve`: they keep state, and share none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from served import served
from third_party import apart, npm

from mcp_rollout import GatewayConfig

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("clients")
MINI = ROOT / "tests" / "gateway" / "mini_server.py"
CLIENTS = {"fastmcp": "mcp2", "openai_agents": "mcp2", "langchain": "mcp1"}


def servers() -> GatewayConfig:
    entry = {"command": sys.executable, "args": ["-I", "-S", str(MINI), "put", "get", "echo"], "scope": "process"}
    return GatewayConfig.model_validate({"servers": {"store": {**entry, "required": True}}})


async def played(python: Path, name: str, url: str) -> None:
    """A program of this client reads what it has written, also after another one has written elsewhere."""
    for number in (1, 2):
        argv = [str(python), str(PROGRAMS / f"{name}_client.py"), f"{url}/{name}-{number}", f"plum {number}"]
        program = await anyio.run_process(argv, stderr=subprocess.STDOUT, check=False)
        assert program.stdout.decode().splitlines()[-1:] == [f"plum {number}"], program.stdout.decode()


@pytest.mark.full
@pytest.mark.needs("mcp1", "mcp2")
async def test_unchanged_clients_keep_state_at_an_address() -> None:
    async with served(servers()) as running:
        await played(Path(sys.executable), "sdk", running.url)
        for name, generation in CLIENTS.items():
            await played(ROOT / f".venv-{generation}" / "bin" / "python", name, running.url)
        assert running.leases == 2 + 2 * len(CLIENTS)


@pytest.mark.full
@pytest.mark.needs("verifiers")
async def test_verifiers_plays_64_worlds_of_a_stdio_server_that_keeps_state(tmp_path: Path) -> None:
    entry = apart(npm("server-memory"), tmp_path, before='export MEMORY_FILE_PATH="$PWD/memory.jsonl"')
    python, program = ROOT / ".venv-verifiers" / "bin" / "python", PROGRAMS / "verifiers_client.py"
    async with served(GatewayConfig.model_validate({"servers": {"memory": entry}})) as running:
        argv = [str(python), str(program), running.url, "64"]
        played = await anyio.run_process(argv, stderr=subprocess.STDOUT, check=False)
        read = json.loads(played.stdout.decode().splitlines()[-1])
        assert len(read) == 64 and all(names == [rollout] for rollout, names in read.items())
        assert running.leases == 0
