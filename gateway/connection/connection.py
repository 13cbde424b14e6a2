"""One connection to one server, and the one task that opens, holds and closes it.

mcp's client enters cancel scopes that only the task that entered them may leave, so the owner task (`Connection.run`)
lives for as long as the connection does; everybody else only awaits `call`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import anyio
import mcp_types as mcp
import structlog
from mcp import Client, MCPError
from mcp.client.session import ClientSession, IncomingMessage
from pydantic import ValidationError

from gateway.config.models import ServerConfig
from gateway.connection.calls import Calls
from gateway.connection.cleaning import Cleaning
from gateway.connection.listing import list_tools
from gateway.connection.requests import Exchanges
from gateway.errors import ConfigError, ConnectTimeout, GatewayError, ServerUnavailable, StartFault, innermost
from gateway.transport.delivery import DELIVERY
from gateway.transport.link import Link
from gateway.transport.listening import hear_tool_changes
from gateway.transport.mcp_logs import cleaned
from gateway.transport.target import Connect, NegotiatedProtocol, is_ours, target_of
from gateway.transport.wire import read_tools
from gateway.types import RequestKind, ResourceKind, ToolDefinition

log = structlog.get_logger(__name__)

_LIMIT = "the limit in its entry"
_CLIENT_INFO = mcp.Implementation(name="mcp-rollout", version=version("mcp-rollout"))


@dataclass(eq=False)
class Connection:
    """Opened by `run` in a task of its own, used by anybody through `call`, ended by `end`."""

    server: str
    config: ServerConfig
    connect: Connect | None = None
    era: NegotiatedProtocol = field(default_factory=NegotiatedProtocol)
    on_tools_changed: Callable[[Connection], None] | None = None
    """Called, possibly often, when the server announces that its list of tools has changed."""
    asks: frozenset[RequestKind] = frozenset()
    """What the server may ask for within calls; declared as capabilities."""
    patience_s: float = 0.0
    """How long an answer to such a request may take."""

    tools: tuple[ToolDefinition, ...] = field(default=(), init=False)
    malformed: tuple[str, ...] = field(default=(), init=False)
    """One message for each tool that the server listed and that nobody can call."""
    tools_with_secrets: tuple[str, ...] = field(default=(), init=False)
    """Names of tools whose definitions hold a secret of the server's entry."""
    instructions: str = field(default="", init=False)
    resource_kinds: frozenset[ResourceKind] = field(default=frozenset(), init=False)
    """What the server has besides tools."""
    protocol_version: str = field(default="", init=False)
    start_s: float = field(default=0.0, init=False)
    """From the start of `run` until calls could be sent."""
    done: anyio.Event = field(default_factory=anyio.Event, init=False)
    """Set when the owner task has closed everything."""

    def __post_init__(self) -> None:
        self._link = Link()
        self._opened = anyio.Event()
        self._error: GatewayError | ConfigError | None = None
        self._scope = anyio.CancelScope()
        self._abandoned: str | None = None
        self._exchanges = Exchanges()
        self._link.hear = self._hear
        self._cleaning = Cleaning(self.config, self.era)
        self._link.clean = self._cleaning.text
        self._calls = Calls(self.server, self.config, self._link, self._exchanges, self._cleaning)
        # One request each, with the contract that `Calls` states: nothing stands between a session and the wire.
        self.call, self.list_raw = self._calls.call, self._calls.list_raw

    @property
    def alive(self) -> bool:
        """Whether a request can be sent."""
        return self._calls.session is not None and not self._link.over.is_set()

    @property
    def exhausted(self) -> str:
        """What the server used up, where a limit of its entry ended it; empty where none did."""
        return self._link.exhausted

    @property
    def pid(self) -> int | None:
        """The server's process, where it is one of ours."""
        return self._link.pid

    def end(self, reason: str = "the connection was closed") -> None:
        """Ask the owner task to close the connection; returns at once, `done` tells when it is closed."""
        self._link.end(reason)
        if not self._opened.is_set():
            self._abandoned = reason
            self._scope.cancel()  # a handshake does not watch the link

    async def started(self) -> None:
        """Wait until calls can be sent; bounded by `start_timeout_s`.

        Raises:
            ServerUnavailable: the server could not be started or reached (`ConnectTimeout`: not in time).
            ConfigError: its `factory` cannot be imported.
        """
        with anyio.move_on_after(self.config.start_timeout_s):
            await self._opened.wait()
        if self._error is not None:
            raise self._error
        if not self._opened.is_set():
            raise self._too_late()

    async def run(self) -> None:
        """The owner task: start it once, in a task group that outlives the connection. It raises only cancellation."""
        DELIVERY.set(None)  # it may be opened for a call, and outlives it
        began = anyio.current_time()
        self._scope.deadline = began + self.config.start_timeout_s
        try:
            with cleaned(self._link), self._scope as scope:
                await self._hold(scope, began)
            if scope.cancelled_caught and not self._opened.is_set():
                self._error = self._too_late() if self._abandoned is None else self._given_up(self._abandoned)
        except GatewayError as error:
            self._error = self._cleaning.error(error)
        except ConfigError as error:
            self._error = error
        except Exception as error:  # boundary: a server, its transport or a factory; it ends this connection only
            self._error = self._cannot_start(error)
            if self._opened.is_set():
                log.warning("connection.broke", server=self.server, problem=str(self._error))
        finally:
            if self._error is not None:
                self.era.forget()
            self._calls.session = None
            self._link.end("the connection was closed")
            self._opened.set()
            self.done.set()

    async def _hold(self, scope: anyio.CancelScope, began: float) -> None:
        async with self._client() as client:
            await self._describe(client)
            self.protocol_version = client.protocol_version
            self.start_s = anyio.current_time() - began
            self.era.learn(client)
            self._exchanges.declare(client.session, self.asks)
            self._calls.session = client.session
            self._link.handshake_done = True
            scope.deadline = math.inf
            self._opened.set()
            async with anyio.create_task_group() as hearing:
                hearing.start_soon(hear_tool_changes, client, self.server, self._tools_changed, self._cleaning.text)
                await self._link.over.wait()
                hearing.cancel_scope.cancel()
            self._calls.session = None
            scope.deadline = anyio.current_time() + self.config.close_timeout_s

    def _client(self) -> Client:
        target = self.connect(self.config, self.server) if self.connect is not None else None
        if target is None:
            target = target_of(self.server, self.config, self._link, self.era, patience_s=self.patience_s)
        self._calls.by_callback = not is_ours(target)
        return Client(
            target,
            mode=self.era.mode,
            prior_discover=self.era.discover,
            client_info=_CLIENT_INFO,
            cache=None,
            log_level=self.config.log_level,
            elicitation_callback=self._exchanges.elicit if RequestKind.ELICITATION in self.asks else None,
            sampling_callback=self._exchanges.sample if RequestKind.SAMPLING in self.asks else None,
            message_handler=self._heard_by_mcp,
        )

    async def _heard_by_mcp(self, message: IncomingMessage) -> None:
        if isinstance(message, mcp.LoggingMessageNotification):
            self._hear(message.method, message.params.model_dump(by_alias=True), None)
        elif isinstance(message, mcp.ToolListChangedNotification):
            self._hear(message.method, None, None)

    def _hear(self, method: str, params: Mapping[str, Any] | None, context: Context | None) -> None:
        if method == "notifications/tools/list_changed":
            self._tools_changed()
        else:
            self._exchanges.hear(method, params or {}, context)

    def _tools_changed(self) -> None:
        if self.on_tools_changed is not None and self._opened.is_set():
            self.on_tools_changed(self)

    async def _describe(self, client: Client) -> None:
        self.tools, self.malformed = await self._list(client.session)
        self.tools_with_secrets = tuple(
            self._cleaning.text(tool.name) for tool in self.tools if self._cleaning.tells(tool)
        )
        self.instructions = self._calls.instructions = self._cleaning.text(client.instructions or "")
        has = {
            ResourceKind.INSTRUCTIONS: self.instructions,
            ResourceKind.RESOURCES: client.server_capabilities.resources,
            ResourceKind.PROMPTS: client.server_capabilities.prompts,
        }
        self.resource_kinds = frozenset(offer for offer, found in has.items() if found)

    async def _list(self, session: ClientSession) -> tuple[tuple[ToolDefinition, ...], tuple[str, ...]]:
        listed, faults = await list_tools(session)
        tools, more = read_tools(self.server, listed, {name: role for role, name in self.config.roles.items()})
        return tuple(tools), tuple(self._cleaning.text(fault) for fault in (*faults, *more))

    async def list_again(self) -> tuple[ToolDefinition, ...] | None:
        """The tools as the server defines them now; None where it does not say within `start_timeout_s`."""
        session = self._calls.session
        if session is None:
            return None
        with anyio.move_on_after(self.config.start_timeout_s):
            try:
                tools, _ = await self._list(session)
                return tools
            except (MCPError, ValidationError, ValueError, RuntimeError, OSError, anyio.BrokenResourceError) as error:
                log.warning(
                    "connection.not_listed_again", server=self.server, problem=self._cleaning.text(_innermost(error))
                )
        return None

    def _too_late(self) -> ConnectTimeout:
        bound = f"{self.config.label!r} did not finish its handshake in {self.config.start_timeout_s:g} s"
        if exhausted := self._link.exhausted or self._link.out_of_memory():
            return ConnectTimeout(self._link.describe(f"{bound}: {exhausted}, {_LIMIT}"), server=self.server)
        remedy = "check the command by hand, or raise start_timeout_s"
        return ConnectTimeout(self._link.describe(bound), server=self.server, remedy=remedy)

    def _given_up(self, reason: str) -> ServerUnavailable:
        return ServerUnavailable(f"given up during its handshake: {reason}", server=self.server)

    def _cannot_start(self, error: Exception) -> ServerUnavailable:
        problem = self._link.reason or self._link.trouble or _innermost(error)
        if self._link.exhausted:
            problem = f"{problem}: {self._link.exhausted}, {_LIMIT}"
        message = self._link.describe(f"{self.config.label!r} is not available: {problem}")
        cause, fault = innermost(error), self._link.fault
        if isinstance(cause, MCPError) and cause.code == mcp.METHOD_NOT_FOUND and self.config.command is not None:
            fault = StartFault.NOT_MCP
        unavailable = ServerUnavailable(message, server=self.server)
        unavailable.fault, unavailable.__cause__ = fault, error
        return self._cleaning.error(unavailable)


def _innermost(error: BaseException) -> str:
    error = innermost(error)
    return f"{type(error).__name__}: {error}".rstrip(": ")
