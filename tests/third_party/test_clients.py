"""MCP clients of other projects, unchanged, each at an address of `serve`: they keep state, and share none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from served import served

from mcp_rollout import GatewayConfig

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("clients")
MINI = ROOT / "tests" / "gateway" / "mini_server.py"
INSTALLED = ROOT / ".venv-clients"
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
async def test_unchanged_clients_keep_state_at_an_address() -> None:
    assert INSTALLED.is_dir(), f"{INSTALLED} is missing: run `make clients`"
    async with served(servers()) as running:
        await played(Path(sys.executable), "sdk", running.url)
        for name, generation in CLIENTS.items():
            await played(INSTALLED / generation / "bin" / "python", name, running.url)
        assert running.leases == 2 + 2 * len(CLIENTS)
