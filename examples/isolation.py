"""Isolate trajectories with one server process each, for any MCP server that keeps state.

python examples/isolation.py
"""

import sys
import tempfile
from pathlib import Path

import anyio

from mcp_rollout import Gateway, GatewayConfig

# An ordinary server with a global variable: the kind that leaks between trajectories when it is shared.
SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("notes", log_level="ERROR")
notes = []

@server.tool()
def remember(text: str) -> str:
    notes.append(text)
    return ", ".join(notes)

server.run("stdio")
"""


async def main() -> None:
    script = Path(tempfile.mkdtemp()) / "notes.py"
    script.write_text(SERVER)
    for scope, expected in (("process", "two"), ("shared", "one, two")):
        entry = {"command": sys.executable, "args": [str(script)], "scope": scope, "required": True}
        async with Gateway(GatewayConfig.model_validate({"servers": {"notes": entry}})) as gateway:
            async with gateway.lease(trajectory="a", task=None, seed=0) as session:
                await session.call("remember", {"text": "one"})
            async with gateway.lease(trajectory="b", task=None, seed=0) as session:
                seen = (await session.call("remember", {"text": "two"})).text
            assert seen == expected, (scope, seen)
            print(f"scope {scope}: the second trajectory sees {seen!r}")


if __name__ == "__main__":
    anyio.run(main)
