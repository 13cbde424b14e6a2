"""One connection to one server, opened, held and closed by a single owner task.

mcp's client enters cancel scopes that only the task that entered them may leave, so the owner task (`Connection.run`)
lives as long as the connection; all other tasks only await `call`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol

import anyio
import mcp_types as mcp
import structlog
from mcp import Client
from mcp.client.session import ClientSession, IncomingMessage

from mcp_rollout.gateway.config.models import Kind, ServerConfig
from mcp_rollout.gateway.connection.calls import MCP_FAILURES, Calls
from mcp_rollout.gateway.connection.failures import cannot_start, describe, ended_at_probe, not_in_time
from mcp_rollout.gateway.connection.forwarding import Forwarding
from mcp_rollout.gateway.connection.in_flight import InFlightCalls, OutgoingCall
from mcp_rollout.gateway.connection.redaction import Redactor, redacted_mcp_logs
from mcp_rollout.gateway.connection.server_requests import ServerRequests
from mcp_rollout.gateway.connection.tool_listing import list_definitions, watch_tool_changes
from mcp_rollout.gateway.errors import (
    CallTimeout,
    ConfigError,
    GatewayError,
    ServerUnavailable,
    ServesWorlds,
    ToolsChanged,
)
from mcp_rollout.gateway.server_events import RequestKind
from mcp_rollout.gateway.transport.delivery import DELIVERY
from mcp_rollout.gateway.transport.link import Link
from mcp_rollout.gateway.transport.negotiated import NegotiatedProtocol, Target
from mcp_rollout.gateway.types import LEASE_EXTENSION, ServerIdentity, ToolDefinition, ToolResult

log = structlog.get_logger(__name__)

_CLIENT_INFO = mcp.Implementation(name="mcp-rollout", version=version("mcp-rollout"))


class AnyConnection(Protocol):
    """A `Connection` of this gateway, or one server of a world that another gateway holds (`gateway.remote`)."""

    @property
    def server(self) -> str:
        """The server's name in this gateway."""
        ...

    @property
    def local(self) -> Connection | None:
        """Itself, where this gateway holds it; None for a server of another gateway's world."""
        ...

    @property
    def alive(self) -> bool:
        """Whether a request can be sent."""
        ...

    @property
    def exhausted(self) -> str:
        """Which limit of its entry ended the server, as half a sentence; empty where none did."""
        ...

    @property
    def killed(self) -> str:
        """Which signal ended the server, as half a sentence; empty where it ended by itself or was to end."""
        ...

    @property
    def changed(self) -> ToolsChanged | None:
        """How the tools of a lease's own connection differ from those at the start of the run; None if they do not."""
        ...

    @property
    def done(self) -> anyio.Event:
        """Set when nothing of the connection is left."""
        ...

    def call(self, call: OutgoingCall, meta: Mapping[str, Any], /) -> Coroutine[Any, Any, ToolResult]:
        """Send one request and wait for its result; safe from any task, any number at a time.

        Args:
            meta: The request's `_meta`.

        Raises:
            RequestRefused: the server requested input that no configured component could give.
            ServerUnavailable: the request surely did not run.
            DeliveryUnknown: it was sent, and the line broke before the answer.
            CallTimeout: it was not answered within its `timeout_s`.
            ProtocolError: the answer is not what the protocol or the tool's own output schema allows.
        """
        ...

    def end(self, reason: str = ...) -> None:
        """Ask for the connection to be closed, and return at once."""
        ...


@dataclass(eq=False)
class Connection:
    """Opened by `run` in its own task, used from any task through `call`, ended by `end`."""

    server: str
    config: ServerConfig
    open_target: Callable[[Link], Target]
    """What to connect to; called once for each start."""
    protocol: NegotiatedProtocol
    """Shared by all connections to the server."""
    redactor: Redactor
    """Shared likewise."""
    on_tools_changed: Callable[[Connection], None] | None = None
    """Called, possibly often, when the server announces that its list of tools has changed."""
    answered: frozenset[RequestKind] = frozenset()
    """Kinds of server requests that have an answerer; declared as capabilities."""
    relays: bool = False
    """Whether it forwards requests of MCP clients, to which all requests of the server then pass."""

    tools: tuple[ToolDefinition, ...] = field(default=(), init=False)
    malformed: tuple[str, ...] = field(default=(), init=False)
    """One message for each listed tool that cannot be called."""
    tools_with_secrets: tuple[str, ...] = field(default=(), init=False)
    """Names of tools whose definitions contain a secret of the server's entry."""
    instructions: str = field(default="", init=False)
    identity: ServerIdentity = field(default_factory=ServerIdentity, init=False)
    """What the server has besides tools."""
    capabilities: dict[str, Any] = field(default_factory=dict[str, Any], init=False)
    """The server's own, as it declared them."""
    changed: ToolsChanged | None = field(default=None, init=False)
    """As `AnyConnection.changed`."""
    start_s: float = field(default=0.0, init=False)
    """Seconds from the start of `run` until calls could be sent."""
    call: Callable[[OutgoingCall, Mapping[str, Any]], Coroutine[Any, Any, ToolResult]] = field(init=False)
    """Send one request, with these members of `_meta`; as `AnyConnection.call`."""
    done: anyio.Event = field(default_factory=anyio.Event, init=False)
    """Set when the owner task has closed everything."""

    def __post_init__(self) -> None:
        self._opened = anyio.Event()
        self._error: GatewayError | ConfigError | None = None
        self._scope = anyio.CancelScope()
        self._abandoned: str | None = None
        self._begin()

    def _begin(self) -> None:
        """Make what belongs to one start of the server."""
        self._link = Link()
        in_flight = InFlightCalls()
        self._requests = ServerRequests(in_flight, self.redactor.json)
        self._link.on_notification = self._on_notification
        self._link.redact = self.redactor.text
        self._calls = Calls(self.server, self.config, self._link, in_flight, self.redactor)
        self.call = self._calls.call
        self.forwarding = Forwarding(self.server, self._link, self._calls, in_flight, self.redactor)
        # A lambda, because `_suspect` is replaced by each probe.
        self._calls.on_timeout = lambda: self._suspect.set()
        self._suspect = anyio.Event()

    @property
    def local(self) -> Connection:
        """As `AnyConnection.local`."""
        return self

    @property
    def alive(self) -> bool:
        """Whether a request can be sent."""
        return self._calls.session is not None and not self._link.over.is_set() and not self._calls.forgotten

    @property
    def exhausted(self) -> str:
        """Which limit of its entry ended the server, as half a sentence; empty where none did."""
        return self._link.exhausted

    @property
    def killed(self) -> str:
        """Which signal ended the server, as half a sentence; empty where it ended by itself or was to end."""
        return self._link.killed

    @property
    def stray(self) -> str:
        """The beginning of the first line on the server's standard output that was not a message; else empty."""
        return self._link.stray

    @property
    def pid(self) -> int | None:
        """The server's process, where the gateway started it."""
        return self._link.pid

    async def list_raw(self, *, timeout_s: float) -> list[Any]:
        """The server's tools as it sends them, not parsed beyond JSON. Raises what `call` raises."""
        return await self._calls.list_raw(timeout_s=timeout_s)

    def end(self, reason: str = "the connection was closed") -> None:
        """Ask the owner task to close the connection, and return at once; `done` is set when it is closed."""
        self._link.end(reason)
        if not self._opened.is_set():
            self._abandoned = reason
            self._scope.cancel()  # a handshake does not wait for the link

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
            raise self._not_in_time()

    async def run(self) -> None:
        """The owner task: start it once, in a task group that outlives the connection. It raises only cancellation."""
        DELIVERY.set(None)  # the connection may be opened within a call, and outlives it
        began = anyio.current_time()
        self._scope.deadline = began + self.config.start_timeout_s
        try:
            with redacted_mcp_logs(self._link), self._scope as scope:
                await self._start(scope, began)
            if scope.cancelled_caught and not self._opened.is_set():
                self._error = self._not_in_time()
        except GatewayError as error:
            self._error = self.redactor.error(error)
        except ConfigError as error:
            self._error = error
        except Exception as error:  # boundary: a server, its transport or a factory; it ends this connection only
            self._error = self.redactor.error(cannot_start(self.server, self.config, self._link, error))
            if self._opened.is_set():
                log.warning("connection.broke", server=self.server, problem=str(self._error))
        finally:
            # Without an error, a cancelled start would look like a server that lists no tools.
            if self._error is None and not self._opened.is_set():
                self._error = ServerUnavailable("its start was cancelled", server=self.server)
            # `_error` is set before `_opened`: `started` wakes on the event and reads the error.
            if self._error is not None:
                self.protocol.forget()
            self._calls.session = None
            self._link.end("the connection was closed")
            self._opened.set()
            self.done.set()

    async def _start(self, scope: anyio.CancelScope, began: float) -> None:
        """As `_hold`; a program that ends where `initialize` is not its first message is started again."""
        mode = self.protocol.mode
        probes = mode == "auto" and self.config.kind is Kind.STDIO and self.config.era is None
        try:
            return await self._hold(scope, began, mode)
        except Exception as error:  # boundary: what mcp makes of a program that has ended
            # In less than half of the time, so that a program that always ends has its own reason to do so again.
            in_time = anyio.current_time() - began < self.config.start_timeout_s / 2
            if not probes or self._link.handshake_done or not in_time or not ended_at_probe(error, self._link):
                raise
        log.info("connection.started_again", server=self.server, remedy="era: handshake in its entry saves one start")
        self._begin()
        await self._hold(scope, began, "legacy")

    async def _hold(self, scope: anyio.CancelScope, began: float, mode: str) -> None:
        async with self._client(mode) as client:
            if self.config.era == "modern" and client.session.discover_result is None:
                raise ServerUnavailable("it has no server/discover, and its entry has era: modern", server=self.server)
            # A lease is asked for over HTTP; a process that claims to serve worlds is a server like any other.
            leases = self.config.url is not None and LEASE_EXTENSION in (client.server_capabilities.extensions or {})
            if leases and not self.relays:  # all trajectories would share the world of its clients
                self._error = ServesWorlds(
                    "it serves worlds, which are leased: name it under hosts", server=self.server
                )
                return
            await self._read_server(client)
            self.start_s = anyio.current_time() - began
            self.protocol.learn(client, mode)
            self._requests.declare(client.session, self.answered)
            self._calls.session = client.session
            self._link.handshake_done = True
            # The scope bounds the start, and below the closing. In between the connection has no deadline.
            scope.deadline = math.inf
            self._opened.set()
            async with anyio.create_task_group() as watching:
                watching.start_soon(watch_tool_changes, client, self.server, self._tools_changed, self.redactor.text)
                watching.start_soon(self._probe_after_timeouts)
                # mcp's client notices a dead transport with its next request only; the link knows at once.
                await self._link.over.wait()
                watching.cancel_scope.cancel()
            # No call may begin while mcp's client closes.
            self._calls.session = None
            scope.deadline = anyio.current_time() + self.config.close_timeout_s

    async def _probe_after_timeouts(self) -> None:
        """End a connection whose server answers nothing, so that a shared one is replaced. A slow tool ends nothing."""
        while True:
            await self._suspect.wait()
            # Replaced before the listing, so that a timeout during it causes another probe.
            self._suspect = anyio.Event()
            answers = self._calls.answers
            try:
                await self._calls.list_raw(timeout_s=self.config.call_timeout_s)
            except CallTimeout:
                if self._calls.answers != answers:  # it works through its calls one after another
                    continue
                log.warning("connection.hung", server=self.server, waited_s=self.config.call_timeout_s)
                self._link.end("the server does not answer")
            except GatewayError:
                pass  # it answered; where the line broke, its transport has noted that

    def _client(self, mode: str) -> Client:
        target = self.open_target(self._link)
        self._calls.notes_delivery = target.notes_delivery
        return Client(
            target.transport,
            mode=mode,
            prior_discover=self.protocol.discover,
            client_info=_CLIENT_INFO,
            cache=None,
            log_level=self.config.log_level,
            elicitation_callback=self._requests.elicit if self._asks(RequestKind.ELICITATION) else None,
            sampling_callback=self._requests.sample if self._asks(RequestKind.SAMPLING) else None,
            list_roots_callback=self._requests.list_roots if self.relays else None,
            message_handler=self._on_mcp_message,
        )

    def _asks(self, kind: RequestKind) -> bool:
        return self.relays or kind in self.answered

    async def _on_mcp_message(self, message: IncomingMessage) -> None:
        """Notifications of transports that do not pass them to the link."""
        if self._calls.notes_delivery:  # passed already, such as what acknowledges a client's subscription
            return
        passed = isinstance(message, mcp.LoggingMessageNotification | mcp.ToolListChangedNotification)
        if passed or (self.relays and not isinstance(message, Exception | mcp.ProgressNotification)):
            params = message.params.model_dump(by_alias=True, mode="json", exclude_none=True) if message.params else {}
            self._on_notification(message.method, params)

    def _on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        if method == "notifications/tools/list_changed":
            self._tools_changed()
        if method != "notifications/tools/list_changed" or self.relays:
            self._requests.record(method, params or {})

    def _tools_changed(self) -> None:
        if self.on_tools_changed is not None and self._opened.is_set():
            self.on_tools_changed(self)

    async def _read_server(self, client: Client) -> None:
        self.tools, self.malformed = await self._list(client.session)
        self.tools_with_secrets = tuple(
            self.redactor.text(tool.name) for tool in self.tools if self.redactor.leaks(tool)
        )
        self.instructions = self.redactor.text(client.instructions or "")
        self.identity = identity_of(client, self.redactor.text)
        if self.relays:
            declared = client.server_capabilities.model_dump(by_alias=True, mode="json", exclude_none=True)
            self.capabilities = self.redactor.json(declared)

    async def _list(self, session: ClientSession) -> tuple[tuple[ToolDefinition, ...], tuple[str, ...]]:
        roles = {name: role for role, name in self.config.roles.items()}
        most_bytes = self.config.max_message_bytes
        tools, faults = await list_definitions(session, self.server, roles, most_bytes, self.protocol.listing)
        return tuple(tools), tuple(self.redactor.text(fault) for fault in faults)

    async def list_again(self) -> tuple[ToolDefinition, ...] | None:
        """The tools as the server defines them now; None if it does not list them within `start_timeout_s`."""
        with anyio.move_on_after(self.config.start_timeout_s):
            try:
                return (await self._list(self._calls.session))[0] if self._calls.session is not None else None
            except MCP_FAILURES as error:
                problem = self.redactor.text(describe(error))
                log.warning("connection.not_listed_again", server=self.server, problem=problem)
        return None

    def _not_in_time(self) -> ServerUnavailable:
        return not_in_time(self.server, self.config, self._link, self._abandoned)


_LENGTH = 200
"""Characters that are kept of a name and of a version."""


def identity_of(client: Client, redact: Callable[[str], str]) -> ServerIdentity:
    """The identity of a connected server, without what `redact` takes out."""
    said = client.server_info
    name, version = (redact(text)[:_LENGTH] for text in ((said.name, said.version) if said else ("", "")))
    return ServerIdentity(name=name, version=version, protocol=client.protocol_version)
