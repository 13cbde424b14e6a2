"""One connection to one server, and the one task that opens, holds and closes it.

mcp's client enters cancel scopes that only the task that entered them may leave, so the owner task (`Connection.run`)
lives for as long as the connection does; everybody else only awaits `call`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, TypeVar, cast

import anyio
import mcp_types as mcp
import structlog
from mcp import Client, MCPError
from mcp.client.session import ClientSession, IncomingMessage
from pydantic import ValidationError

from gateway.address import Address
from gateway.config import Kind, ServerConfig
from gateway.errors import CallTimeout, ConfigError, ConnectTimeout, GatewayError, ProtocolError, ServerUnavailable
from gateway.exchange import EXCHANGE, Exchange
from gateway.fetch import fetch
from gateway.http import HttpTransport
from gateway.link import Link
from gateway.listening import hear_tool_changes
from gateway.oauth import Authority
from gateway.requests import Exchanges, answer_round
from gateway.schema import check_output
from gateway.secrets import Secrets
from gateway.sse import SseTransport
from gateway.stdio import StdioTransport
from gateway.types import Offer, RequestKind, ToolDefinition, ToolResult
from gateway.wire import ANSWER, DELIVERY, Answer, Delivery, failure, read_result, read_tools, sound_tools

log = structlog.get_logger(__name__)

Broken = TypeVar("Broken", bound=GatewayError)
Connect = Callable[[ServerConfig, str], Any]
"""The seam for tests and embedders: what `mcp.Client` shall connect to for a server, called once per connection."""

_MAX_PAGES = 100
_MAX_ROUNDS = 10
"""How often a server may answer a call with "come back with this state" before it is off the protocol."""
_ROUND_S = 0.05
_LIMITS_REMEDY = "raise the entry's max_memory_mb or max_cpu_s"
_CLIENT_INFO = mcp.Implementation(name="mcp-rollout", version=version("mcp-rollout"))


@dataclass(slots=True)
class Era:
    """What the first connection to a server learned about its protocol, so that the next ones need not ask."""

    mode: str = "auto"
    discover: mcp.DiscoverResult | None = None
    authority: Authority | None = None
    """Holds the token for all connections to the server."""

    def authority_for(self, config: ServerConfig) -> Authority | None:
        if self.authority is None and config.client_credentials is not None:
            assert config.url is not None
            self.authority = Authority(Address(config.url).url, config)
        return self.authority

    def learn(self, client: Client) -> None:
        self.discover = client.session.discover_result
        self.mode = client.protocol_version if self.discover is not None else "legacy"

    def forget(self) -> None:
        self.mode, self.discover = "auto", None


@dataclass(eq=False)
class Connection:
    """Opened by `run` in a task of its own, used by anybody through `call`, ended by `end`."""

    server: str
    config: ServerConfig
    connect: Connect | None = None
    era: Era = field(default_factory=Era)
    on_tools_changed: Callable[[Connection], None] | None = None
    """Called, possibly often, when the server announces that its list of tools has changed."""
    asks: frozenset[RequestKind] = frozenset()
    """What the server may ask for within calls; declared as capabilities."""
    patience_s: float = 0.0
    """How long an answer to such a request may take."""

    tools: tuple[ToolDefinition, ...] = field(default=(), init=False)
    malformed: tuple[str, ...] = field(default=(), init=False)
    """One message for each tool that the server listed and that nobody can call."""
    instructions: str = field(default="", init=False)
    offers: frozenset[Offer] = field(default=frozenset(), init=False)
    """What the server has besides tools."""
    protocol_version: str = field(default="", init=False)
    start_s: float = field(default=0.0, init=False)
    """From the start of `run` until calls could be sent."""
    done: anyio.Event = field(default_factory=anyio.Event, init=False)
    """Set when the owner task has closed everything."""

    def __post_init__(self) -> None:
        self._link = Link()
        self._opened = anyio.Event()
        self._session: ClientSession | None = None
        self._error: GatewayError | ConfigError | None = None
        self._scope = anyio.CancelScope()
        self._abandoned: str | None = None
        self._exchanges = Exchanges()
        self._by_callback = True
        """Whether progress comes through mcp; our own transports hand it to `_hear`, where a flood costs little."""
        self._link.hear = self._hear
        self._secrets = Secrets(self.config)
        self._link.clean = self._clean_text

    @property
    def alive(self) -> bool:
        """Whether a request can be sent."""
        return self._session is not None and not self._link.over.is_set()

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
        began = anyio.current_time()
        self._scope.deadline = began + self.config.start_timeout_s
        try:
            with self._scope as scope:
                await self._hold(scope, began)
            if scope.cancelled_caught and not self._opened.is_set():
                self._error = self._too_late() if self._abandoned is None else self._given_up(self._abandoned)
        except GatewayError as error:
            self._error = self._cleaned(error)
        except ConfigError as error:
            self._error = error
        except Exception as error:  # boundary: a server, its transport or a factory; it ends this connection only
            self._error = self._cannot_start(error)
            if self._opened.is_set():
                log.warning("connection.broke", server=self.server, problem=str(self._error))
        finally:
            if self._error is not None:
                self.era.forget()
            self._session = None
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
            self._session = client.session
            self._link.settled = True
            scope.deadline = math.inf
            self._opened.set()
            async with anyio.create_task_group() as hearing:
                hearing.start_soon(hear_tool_changes, client, self.server, self._tools_changed)
                await self._link.over.wait()
                hearing.cancel_scope.cancel()
            self._session = None
            scope.deadline = anyio.current_time() + self.config.close_timeout_s

    def _client(self) -> Client:
        target = self.connect(self.config, self.server) if self.connect is not None else None
        if target is None:
            match self.config.kind:
                case Kind.STDIO:
                    target = StdioTransport(self.server, self.config, self._link)
                case Kind.IN_PROCESS:
                    target = build(self.config, self.server)
                case Kind.HTTP:
                    authority = self.era.authority_for(self.config)
                    target = HttpTransport(self.config, self._link, authority=authority, patience_s=self.patience_s)
                case Kind.SSE:
                    target = SseTransport(self.config, self._link, self.era.authority_for(self.config))
        self._by_callback = not isinstance(target, StdioTransport | HttpTransport | SseTransport)
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
        """Note what the server says by the way on the call it belongs to; it is dropped where that cannot be told."""
        said = params or {}
        match method:
            case "notifications/tools/list_changed":
                self._tools_changed()
            case "notifications/progress":
                exchange = self._exchanges.by_token(said.get("progressToken"))
                if exchange is not None:
                    exchange.progress(said.get("progress"), said.get("total"), said.get("message"))
            case "notifications/message":
                here = EXCHANGE.get() if context is None else context.get(EXCHANGE)
                exchange = self._exchanges.find(said.get("_meta"), here)
                if exchange is not None:
                    exchange.logged(said.get("level"), said.get("data"))
            case _:
                pass

    def _tools_changed(self) -> None:
        if self.on_tools_changed is not None and self._opened.is_set():
            self.on_tools_changed(self)

    async def _describe(self, client: Client) -> None:
        self.tools, self.malformed = await self._list(client.session)
        self.instructions = self._clean_text(client.instructions or "")
        has = {
            Offer.INSTRUCTIONS: self.instructions,
            Offer.RESOURCES: client.server_capabilities.resources,
            Offer.PROMPTS: client.server_capabilities.prompts,
        }
        self.offers = frozenset(offer for offer, found in has.items() if found)

    async def _list(self, session: ClientSession) -> tuple[tuple[ToolDefinition, ...], tuple[str, ...]]:
        listed, faults = await list_tools(session)
        tools, more = read_tools(self.server, listed, {name: role for role, name in self.config.roles.items()})
        return tuple(tools), tuple(self._clean_text(fault) for fault in (*faults, *more))

    async def list_again(self) -> tuple[ToolDefinition, ...] | None:
        """The tools as the server defines them now; None where it does not say within `start_timeout_s`."""
        session = self._session
        if session is None:
            return None
        with anyio.move_on_after(self.config.start_timeout_s):
            try:
                tools, _ = await self._list(session)
                return tools
            except (MCPError, ValidationError, ValueError, RuntimeError, OSError, anyio.BrokenResourceError) as error:
                log.warning(
                    "connection.not_listed_again", server=self.server, problem=self._clean_text(_innermost(error))
                )
        return None

    def _too_late(self) -> ConnectTimeout:
        bound = f"{self.config.label!r} did not finish its handshake in {self.config.start_timeout_s:g} s"
        remedy = "check the command by hand, or raise start_timeout_s"
        if exhausted := self._link.exhausted or self._link.out_of_memory():
            bound, remedy = f"{bound}: {exhausted}", _LIMITS_REMEDY
        return ConnectTimeout(f"{self._link.describe(bound)}; {remedy}", server=self.server)

    def _given_up(self, reason: str) -> ServerUnavailable:
        return ServerUnavailable(f"given up during its handshake: {reason}", server=self.server)

    def _cannot_start(self, error: Exception) -> ServerUnavailable:
        problem = self._link.reason or self._link.trouble or _innermost(error)
        if self._link.exhausted:
            problem = f"{problem}: {self._link.exhausted} ({_LIMITS_REMEDY})"
        message = self._link.describe(f"{self.config.label!r} is not available: {problem}")
        unavailable = ServerUnavailable(message, server=self.server)
        unavailable.__cause__ = error
        return self._cleaned(unavailable)

    async def call(
        self,
        tool: ToolDefinition,
        arguments: Mapping[str, Any],
        *,
        meta: Mapping[str, Any],
        timeout_s: float,
        exchange: Exchange | None = None,
    ) -> ToolResult:
        """Send one request and wait for its result; safe from any task, and any number at a time.

        Args:
            timeout_s: Does not run while the server waits for an answer to a request of its own.
            exchange: Answers such requests; without one they are refused.

        Raises:
            RequestRefused: the server asked for something that nobody could give.
            ServerUnavailable: the request surely did not arrive.
            DeliveryUnknown: it was sent and the line broke before the answer.
            CallTimeout: it was sent and not answered within `timeout_s`.
            ProtocolError: the answer is not what the protocol or the tool's own output schema allows.
        """
        try:
            result = await self._call(tool, arguments, meta, timeout_s, exchange)
        except GatewayError as error:
            raise self._cleaned(error) from error.__cause__
        return self._cleaned_result(result)

    def _cleaned(self, error: Broken) -> Broken:
        """The error without the server's secrets; then without its cause too, which may quote them."""
        message = str(error)
        if (clean := self._clean(message)) != message:
            error.args, error.__cause__, error.__suppress_context__ = (clean,), None, True
        return error

    def _cleaned_result(self, result: ToolResult) -> ToolResult:
        """The result without the server's secrets: a trace would keep them, and a policy would learn them."""
        if not self._secrets and self.era.authority is None:
            return result
        content = tuple(
            replace(block, text=self._clean(block.text), uri=self._clean(block.uri)) for block in result.content
        )
        meta, structured = self._clean(dict(result.meta)), self._clean(result.structured)
        return replace(result, content=content, structured=structured, meta=meta)

    def _clean(self, value: Any) -> Any:
        """A JSON value without secrets; the token in use is one of them."""
        self._note_token()
        return self._secrets.clean_json(value)

    def _clean_text(self, text: str, *, cut_before: bool = False) -> str:
        self._note_token()
        return self._secrets.clean(text, cut_before=cut_before)

    def _note_token(self) -> None:
        if self.era.authority is not None and self.era.authority.token is not None:
            self._secrets.add(self.era.authority.token)

    async def _call(
        self,
        tool: ToolDefinition,
        arguments: Mapping[str, Any],
        meta: Mapping[str, Any],
        timeout_s: float,
        exchange: Exchange | None,
    ) -> ToolResult:
        session, server, name = self._session, tool.server, tool.name
        if session is None or self._link.over.is_set():
            raise ServerUnavailable(self._link.down or "not connected", server=server, tool=name)
        delivery = Delivery()
        DELIVERY.set(delivery)
        exchange = exchange or Exchange(server=server, tool=name)
        exchange.clean = self._clean
        outer = EXCHANGE.set(exchange)
        progress_token = self._exchanges.open(exchange)
        if not self._by_callback:
            meta = {**meta, "progress_token": progress_token}
        began = time.perf_counter()
        answer: mcp.CallToolResult | None = None
        with anyio.move_on_after(timeout_s) as exchange.scope:
            try:
                if tool.offer is None:
                    answer = await self._ask(session, name, arguments, meta, exchange, delivery)
                else:
                    answer = await fetch(session, name, arguments, instructions=self.instructions, meta=meta)
            except (MCPError, ValidationError, ValueError, RuntimeError, OSError, anyio.BrokenResourceError) as error:
                if exchange.broken is not None:
                    raise exchange.broken from error
                outcome = failure(error, delivery, down=self._link.down, server=server, tool=name)
                if delivery.session_over:
                    self._link.end("the server has ended the session")
                if isinstance(outcome, GatewayError):
                    raise outcome from error
                return outcome
            finally:
                self._exchanges.close(progress_token)
                EXCHANGE.reset(outer)
        if exchange.broken is not None:
            raise exchange.broken
        if answer is None:
            raise CallTimeout(f"no answer within {timeout_s:g} s", server=server, tool=name)
        try:
            result = read_result(answer, trusted=self.config.trusted, elapsed_s=time.perf_counter() - began)
        except ValueError as error:
            raise ProtocolError(str(error), server=server, tool=name) from error
        if tool.output_schema is not None and not result.is_error:
            fault = check_output(tool, answer.structured_content)
            if fault is not None:
                raise ProtocolError(f"off its own output schema: {fault}", server=server, tool=name)
        return result

    async def list_raw(self, *, timeout_s: float) -> list[Any]:
        """The server's tools as it sends them, read by nobody. Raises what `call` raises."""
        session, server = self._session, self.server
        if session is None or self._link.over.is_set():
            raise ServerUnavailable(self._link.down or "not connected", server=server)
        delivery = Delivery()
        DELIVERY.set(delivery)
        with anyio.move_on_after(timeout_s):
            try:
                return await raw_tools(session)
            except (MCPError, ValidationError, ValueError, RuntimeError, OSError, anyio.BrokenResourceError) as error:
                outcome = failure(error, delivery, down=self._link.down, server=server, tool="tools/list")
                if isinstance(outcome, GatewayError):
                    raise outcome from error
                raise ProtocolError(outcome.text, server=server, tool="tools/list") from error
        raise CallTimeout(f"no answer within {timeout_s:g} s", server=server, tool="tools/list")

    async def _ask(
        self,
        session: ClientSession,
        name: str,
        arguments: Mapping[str, Any],
        meta: Mapping[str, Any],
        exchange: Exchange,
        delivery: Delivery,
    ) -> mcp.CallToolResult:
        """One `tools/call`, without the SDK's second look at the result and without its hidden `tools/list`.

        A server that needs something first is called again with the answers, as often as it may ask.
        """
        state: str | None = None
        answers: dict[str, Any] | None = None

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            exchange.progress(progress, total, message)

        callback = on_progress if self._by_callback else None
        for _ in range(_MAX_ROUNDS):
            params = mcp.CallToolRequestParams(
                name=name,
                arguments=dict(arguments),
                request_state=state,
                input_responses=answers,
                _meta=cast("Any", dict(meta)),
            )
            request = mcp.CallToolRequest(params=params)
            answer: Answer = await session.send_request(request, ANSWER, progress_callback=callback)
            if isinstance(answer, mcp.CallToolResult):
                return answer
            delivery.rounds += 1
            state, answers = answer.request_state, None
            if answer.input_requests:
                answers = await answer_round(exchange, answer.input_requests)
            else:
                await anyio.sleep(_ROUND_S)
        raise ValueError(f"the server postponed its answer {_MAX_ROUNDS} times")


async def raw_tools(session: ClientSession) -> list[Any]:
    """All pages of `tools/list`, not parsed beyond JSON."""
    tools: list[Any] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await _raw_page(session, cursor)
        listed, cursor = page.get("tools"), page.get("nextCursor")
        tools += cast("list[Any]", listed) if isinstance(listed, list) else []
        if not isinstance(cursor, str):
            break
    return tools


async def list_tools(session: ClientSession) -> tuple[list[mcp.Tool], list[str]]:
    """All pages of the server's tools; a malformed tool costs itself only and is reported."""
    tools: list[mcp.Tool] = []
    faults: list[str] = []
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(_MAX_PAGES):
        params = mcp.PaginatedRequestParams(cursor=cursor) if cursor else None
        try:
            page = await session.list_tools(params=params)
            found, more, cursor = page.tools, list[str](), page.next_cursor
        except MCPError as error:
            if error.code == mcp.METHOD_NOT_FOUND:
                break  # a server without tools need not know the method
            raise
        except ValueError:  # off the protocol, or nested deeper than mcp's models go
            found, more, cursor = await _list_leniently(session, cursor)
        tools += found
        faults += more
        if not cursor or cursor in seen:
            break
        seen.add(cursor)
    return tools, faults


async def _list_leniently(
    session: ClientSession, cursor: str | None
) -> tuple[Sequence[mcp.Tool], list[str], str | None]:
    raw = await _raw_page(session, cursor)
    tools, faults = sound_tools(raw, session.protocol_version or "2025-11-25")
    page = mcp.ListToolsResult(tools=list(tools))
    # So that annotations which travel in HTTP headers are known for these tools too.
    session._absorb_tool_listing(page, complete=False)  # pyright: ignore[reportPrivateUsage]
    cursor_out = raw.get("nextCursor")
    return page.tools, faults, cursor_out if isinstance(cursor_out, str) else None


async def _raw_page(session: ClientSession, cursor: str | None) -> dict[str, Any]:
    # mcp parses a page as a whole; below that there is only the private request path.
    data: dict[str, Any] = {"method": "tools/list", "params": {"cursor": cursor} if cursor else {}}
    options: dict[str, Any] = {}
    session._stamp(data, cast("Any", options))  # pyright: ignore[reportPrivateUsage]
    return await session._dispatcher.send_raw_request(  # pyright: ignore[reportPrivateUsage]
        "tools/list", data["params"], cast("Any", options)
    )


def build(config: ServerConfig, server: str) -> Any:
    """Call an in-process server's `factory`. Raises `ConfigError` when there is none by that name."""
    from importlib import import_module

    module, _, function = (config.factory or "").partition(":")
    try:
        factory = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        remedy = "name an importable function as package.module:function"
        raise ConfigError(
            f"cannot import {config.factory!r}: {error}", key=f"servers.{server}.factory", remedy=remedy
        ) from error
    return factory()


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return f"{type(error).__name__}: {error}".rstrip(": ")
