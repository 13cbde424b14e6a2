"""Serve a made-up client before the fork, so that no fork executes the SDK's code for the first time.

A first request costs twice the CPU time of a later one: the interpreter specialises bytecode and fills caches, and
libraries build what they put off. What is done here, forks have; each of them also writes to fewer shared pages.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any

_ROUNDS = 10
"""Python 3.11 specialises a function's code after eight calls."""
_MOST_S = 5.0
_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "rehearsal", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("server/discover", {}),
    ("subscriptions/listen", {"notifications": {"toolsListChanged": True}}),
    ("tools/list", {}),
    ("tools/call", {"name": "echo", "arguments": {"text": "x"}}),
    ("tools/call", {"name": "none", "arguments": {}}),
)
"""What a gateway sends to a server of the SDK's version 2, and calls."""


rehearsals: list[Callable[[], Awaitable[None]]] = []
"""What the program wants to have run before each fork, which must have no effect outside of the process."""
sys.modules["mcp_rollout_fork_server"] = sys.modules[__name__]  # where the program finds them


def rehearse() -> None:
    """Serve from a server of the SDK's that is made for this, and run the program's own `rehearsals`.

    The program's own server sees nothing of the first. Does nothing without version 2 of the SDK, or where spans are
    recorded.
    """
    module: Any = sys.modules.get("mcp.server.mcpserver")
    if module is None or "opentelemetry.sdk.trace" in sys.modules:
        return
    root, disabled = logging.getLogger(), logging.root.manager.disable
    handlers, level = list(root.handlers), root.level
    logging.disable(logging.CRITICAL)
    try:
        _run(_serve_rounds(module.MCPServer("rehearsal")))
        for rehearsal in rehearsals:
            _run(rehearsal())
    except Exception:  # boundary: another release of the SDK, or the program's code; the forks do without
        pass
    finally:
        # The SDK's server sets up logging, which is the program's to do.
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.disable(disabled)


def _run(rounds: Awaitable[None]) -> None:
    # Not `asyncio.run`, which leaves the thread with an event loop of None: the program would be given no other.
    loop = asyncio.SelectorEventLoop()
    try:
        loop.run_until_complete(asyncio.wait_for(rounds, _MOST_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _serve_rounds(server: Any) -> None:
    @server.tool(structured_output=False)
    async def echo(text: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return text

    for _ in range(_ROUNDS):
        server.streamable_http_app()
        await _serve(server.session_manager.app)  # the public reference to what serves its messages


async def _serve(server: Any) -> None:
    import anyio  # the SDK's, which is imported
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCRequest

    to_server, requests = anyio.create_memory_object_stream[Any](1)
    answers, from_server = anyio.create_memory_object_stream[Any](1)
    async with to_server, requests, answers, from_server, anyio.create_task_group() as tasks:
        tasks.start_soon(server.run, requests, answers, server.create_initialization_options())
        for number, (method, params) in enumerate(_REQUESTS):
            request = JSONRPCRequest(jsonrpc="2.0", id=number, method=method, params={**params, "_meta": _META})
            await to_server.send(SessionMessage(request))
            message = (await from_server.receive()).message
            message.model_dump_json(by_alias=True, exclude_unset=True)
        tasks.cancel_scope.cancel()
