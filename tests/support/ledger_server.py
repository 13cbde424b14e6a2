"""An MCP server that writes each execution down before its effect: a line with the call's id, in the file LEDGER.

Where ENDS_ITS_HOST_AFTER is a number, the first execution after so many kills the process that started the server.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer

server = MCPServer("ledger", log_level="ERROR")
LEDGER = Path(os.environ.get("LEDGER", os.devnull))


@server.tool()
def reset(task: str, seed: int) -> dict[str, str]:
    """Begin a world; the harness's."""
    return {}


@server.tool()
def shout(text: str, id: str) -> str:
    """Say it louder."""
    with LEDGER.open("a") as ledger:  # one write, at its end
        ledger.write(f"{id}\n")
    most = os.environ.get("ENDS_ITS_HOST_AFTER")
    if most and len(LEDGER.read_text().split()) > int(most):
        _end_host_once()
    return text.upper()


@server.tool()
def judge(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Share of letters in what the assistant wrote, calls included."""
    text = "".join(str(message) for message in messages if message["role"] == "assistant")
    share = sum(map(str.isalpha, text)) / max(len(text), 1)
    return {"score": share, "parts": {"letters": share}}


def _end_host_once() -> None:
    try:
        LEDGER.with_suffix(".ended").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getppid(), signal.SIGKILL)


if __name__ == "__main__":
    server.run("stdio")
