"""Serving a client in the same process: lines from one to the other, with the direct path in front of the SDK."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
from mcp.server.mcpserver import MCPServer

from mcp_rollout.mcp_servers.kit import sdk
from mcp_rollout.mcp_servers.kit.direct.calls import DirectCalls
from mcp_rollout.mcp_servers.kit.direct.lines import LineServer
from mcp_rollout.mcp_servers.kit.direct.streams import FINISH_S, Messages, Output
from mcp_rollout.mcp_servers.kit.process import plain_tracebacks

_LINES_AT_ONCE = 100


class InProcess:
    """A server for a gateway in the same process, as a `factory` returns it: its tool calls take the direct path.

    Without it the SDK serves an in-process server, at twice the CPU time of a call.

    Args:
        server: Serves one client; the factory makes another one for the next.
    """

    def __init__(self, server: MCPServer) -> None:
        plain_tracebacks()
        self._server, self._calls = server, DirectCalls.of(server)

    @asynccontextmanager
    async def exchange_lines(self, receive: Callable[[bytes], None]) -> AsyncGenerator[Callable[[bytes], None]]:
        """Serves while it is open; yields what takes a line of the client.

        Args:
            receive: Takes a line of the server, without its end.
        """
        output = _Lines(receive)
        lines = LineServer(self._calls, output)
        messages = Messages(lines.end)
        lines.to_sdk = messages.put
        lowlevel = sdk.lowlevel_of(self._server)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lowlevel.run, messages, output, lowlevel.create_initialization_options())
            try:
                yield _Lines(lines.receive).write
            finally:
                messages.close()
                # Calls are tasks of their own, which outlive a cancelled client unless they are ended here. A tool that
                # ignores its cancellation holds up nothing.
                with anyio.move_on_after(FINISH_S, shield=True):
                    await lines.end()
                tasks.cancel_scope.deadline = anyio.current_time() + FINISH_S


class _Lines(Output):
    """Lines that another part of the process takes, in a later iteration of the event loop.

    Not at once: `take` may answer, and each side would then run within a call of the other.
    """

    def __init__(self, take: Callable[[bytes], None]) -> None:
        super().__init__()
        self._take = take
        # A tool's task begins with the variables that were set where the server was opened, not with those of the
        # caller whose line is taken: over a pipe it would see none of them.
        self._context = contextvars.copy_context()

    def _schedule(self) -> None:
        self._loop.call_soon(self._flush, context=self._context)

    def _flush(self) -> None:
        taken, self._lines = self._lines[:_LINES_AT_ONCE], self._lines[_LINES_AT_ONCE:]
        for line in taken:
            self._bytes -= len(line) + 1
            self._take(line)
        if self._lines:
            self._schedule()
        else:
            self._written()
