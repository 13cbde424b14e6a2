"""Every private name of mcp that the kit uses, each with what it is for.

The names are those of the releases in `KNOWN`. With any other release of mcp the SDK serves every call by itself, and
the server says once what that costs.
"""

from __future__ import annotations

import logging
from copy import copy
from functools import cache
from importlib.metadata import version
from typing import Any

from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.tools.tool_manager import ToolManager
from mcp.server.mcpserver.utilities.func_metadata import FuncMetadata
from pydantic import TypeAdapter

log = logging.getLogger(__name__)

KNOWN = ("2.3.",)
"""How the versions begin whose private names are those below."""
INSTALLED = version("mcp")
is_known = INSTALLED.startswith(KNOWN)
"""Whether calls may take the direct path. Tests set it to false."""


@cache
def warn_of_unknown() -> None:
    """Say once in a process which release of mcp is not known, and what that costs."""
    known = " or ".join(f"{each}x" for each in KNOWN)
    log.warning("mcp %s is not known (%s is): it serves all calls, at up to 20 times the CPU time", INSTALLED, known)


def lowlevel_of(server: MCPServer) -> Server[Any]:
    """What serves a server's messages. Its application for HTTP has the only public reference to it."""
    server.streamable_http_app()
    return server.session_manager.app


def tools_of(server: MCPServer) -> ToolManager:
    """The tools as objects that can be run; the public list has their definitions only."""
    return server._tool_manager  # pyright: ignore[reportPrivateUsage]


def adapter_of(metadata: FuncMetadata, output_model: Any) -> TypeAdapter[Any]:
    """Validates and writes what a tool returns; the model may have a form that pydantic alone does not read."""
    return metadata._output_adapter(output_model)  # pyright: ignore[reportPrivateUsage]


def blank_context(server: MCPServer) -> Context:
    """What a tool is given that takes a context, without a request. The subscriptions have no public name."""
    return Context(mcp_server=server, subscriptions=server._subscriptions)  # pyright: ignore[reportPrivateUsage]


def context_of(blank: Context, request: ServerRequestContext[Any, Any]) -> Context:
    """A blank context with the request of a first round: a copy, for a third of what its constructor costs."""
    context = copy(blank)
    context._request_context = request  # pyright: ignore[reportPrivateUsage]
    return context


def connection_of(context: ServerRequestContext[Any, Any]) -> Connection:
    """The client's connection, over which a direct call sends what its tool sends."""
    return context.session._connection  # pyright: ignore[reportPrivateUsage]
