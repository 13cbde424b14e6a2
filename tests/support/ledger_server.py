"""An MCP server that writes each execution down before its effect: a line with the call's id, in the file LEDGER."""

from __future__ import annotations

import os
from typing import Any

from mcp.server.mcpserver import MCPServer

server = MCPServer("ledger", log_level="ERROR")


@server.tool()
def reset(task: str, seed: int) -> dict[str, str]:
    """Begin a world; the harness's."""
    return {}


@server.tool()
def work(id: str) -> str:
    """Do it once."""
    ledger = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(ledger, f"{id}\n".encode())
    os.close(ledger)
    return f"done {id}"


@server.tool()
def judge(messages: list[dict[str, Any]]) -> dict[str, float]:
    """Scores nothing."""
    return {"score": 1.0}


if __name__ == "__main__":
    server.run("stdio")
