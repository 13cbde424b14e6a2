"""Every private name of mcp and uvicorn that the gateway uses, each with what it is for.

The names are those of the releases in `KNOWN`. With any other release of mcp the gateway does with mcp's public calls
what they can do, and says once what they cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any, cast

import mcp_types as mcp
import structlog
from mcp.client.session import ClientSession, ElicitationFnT, SamplingFnT
from mcp.server.connection import Connection as ClientConnection
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.streamable_http import EventStore, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.dispatcher import CallOptions, Outbound
from pydantic import TypeAdapter

from mcp_rollout.gateway.errors import ConfigError

log = structlog.get_logger(__name__)

KNOWN = ("2.3.",)
"""How the versions begin whose private names are those below."""
INSTALLED = version("mcp")
is_known = INSTALLED.startswith(KNOWN)
"""Whether private names are used. Tests set it to false."""
COST = (
    "calls go through mcp's public session, which takes several times the CPU time; a malformed tool hides its server;"
    " a served client's own protocol metadata is not passed on; the trace lacks requests of kinds that nothing answers"
)

_JSON: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


@cache
def warn_of_unknown() -> None:
    """Say once in a process which release of mcp is not known, and what that costs."""
    if not is_known:
        known = " or ".join(f"{each}x" for each in KNOWN)
        log.warning("mcp.unknown_version", installed=INSTALLED, known=known, cost=COST)


def stamp(session: ClientSession, request: dict[str, Any]) -> CallOptions:
    """Add to a request what the session adds to each: `_meta` in place, and headers as the options it returns.

    mcp's public calls do it themselves, after which nothing can be changed.
    """
    options: CallOptions = {}
    if is_known:
        session._stamp(request, options)  # pyright: ignore[reportPrivateUsage]
    return options


async def send(session: ClientSession, request: Mapping[str, Any], options: CallOptions) -> dict[str, Any]:
    """Send a stamped request through mcp's dispatcher; returns its result as it came, which mcp would parse whole."""
    if is_known:
        dispatcher = session._dispatcher  # pyright: ignore[reportPrivateUsage]
        return await dispatcher.send_raw_request(request["method"], request["params"], options)
    public = mcp.Request[dict[str, Any], str](method=request["method"], params=request["params"])
    return await session.send_request(public, cast(Any, _JSON), progress_callback=options.get("on_progress"))


def is_closed(session: ClientSession, *, otherwise: bool) -> bool:
    """Whether mcp's own streams have ended, for which it uses an error code that servers use, too.

    Args:
        otherwise: The answer where mcp cannot be asked.
    """
    return getattr(session._dispatcher, "_closed", False) if is_known else otherwise  # pyright: ignore[reportPrivateUsage]


def header_maps(session: ClientSession) -> MutableMapping[str, Any]:
    """By tool, which arguments the session mirrors into headers: connections to one server share the copies.

    It stays the same object, since mcp replaces it only after a listing by its own `list_tools`.
    """
    return session._x_mcp_header_maps if is_known else {}  # pyright: ignore[reportPrivateUsage]


def learn(session: ClientSession, tools: Sequence[mcp.Tool]) -> list[mcp.Tool]:
    """The tools that mcp lets through; the session then knows which arguments of theirs travel in headers.

    With public calls the session has learnt them while it listed them.
    """
    if not is_known:
        return list(tools)
    page = mcp.ListToolsResult(tools=list(tools))
    return session._absorb_tool_listing(page, complete=False).tools  # pyright: ignore[reportPrivateUsage]


async def list_page(session: ClientSession, cursor: Any) -> dict[str, Any]:
    """One page of `tools/list`, not parsed beyond JSON: one malformed tool would hide all others on it."""
    if not is_known:
        parsed = await session.list_tools(params=mcp.PaginatedRequestParams(cursor=cursor))
        return parsed.model_dump(by_alias=True, mode="json", exclude_unset=True)
    request: dict[str, Any] = {"method": "tools/list", "params": {} if cursor is None else {"cursor": cursor}}
    options = stamp(session, request)
    return await send(session, request, options)


def answer(
    session: ClientSession, *, elicitation: ElicitationFnT | None = None, sampling: SamplingFnT | None = None
) -> None:
    """Answer requests of a kind whose capability is not declared, which the constructor's callbacks would declare."""
    if is_known and elicitation is not None:
        session._elicitation_callback = elicitation  # pyright: ignore[reportPrivateUsage]
    if is_known and sampling is not None:
        session._sampling_callback = sampling  # pyright: ignore[reportPrivateUsage]


def channel_of(context: ServerRequestContext[Any, Any]) -> Outbound:
    """The way back within a client's request; mcp's session checks and shapes what is sent by its own methods."""
    return context.session._request_outbound  # pyright: ignore[reportPrivateUsage]


def connection_of(context: ServerRequestContext[Any, Any]) -> ClientConnection:
    """mcp's state of a client's session, or of a request without one."""
    return context.session._connection  # pyright: ignore[reportPrivateUsage]


class SessionManager(StreamableHTTPSessionManager):
    """mcp's sessions over HTTP, which can be listed.

    Raises:
        ConfigError: this release of mcp lacks a name that serving takes, and no public call replaces.
    """

    _NEEDED = (
        (ServerSession.__init__, "_request_outbound"),
        (ServerSession.__init__, "_connection"),
        (StreamableHTTPSessionManager.__init__, "_server_instances"),
        (StreamableHTTPServerTransport.__init__, "_event_store"),
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        lacks = [name for made_by, name in self._NEEDED if name not in made_by.__code__.co_names]
        if lacks:
            problem = f"mcp {INSTALLED} has no {', '.join(lacks)}, without which MCP clients cannot be served"
            raise ConfigError(problem, remedy=f"install mcp {KNOWN[-1]}*")
        super().__init__(*args, **options)

    def transports(self) -> Mapping[str, StreamableHTTPServerTransport]:
        """By session id."""
        return self._server_instances

    def events_of(self, session: str) -> EventStore | None:
        """What `event_store` was when a session began."""
        return self._server_instances[session]._event_store  # pyright: ignore[reportPrivateUsage]
