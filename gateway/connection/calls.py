"""Send requests on an open connection, wait for their answers, and turn failures into errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

import anyio
import mcp_types as mcp
from mcp import MCPError
from mcp.client.session import ClientSession
from mcp_types.version import LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcp_rollout.gateway import sdk
from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.connection.deadline import Deadline, Deadlines
from mcp_rollout.gateway.connection.failures import as_error, describe, failure, refuses
from mcp_rollout.gateway.connection.in_flight import InFlightCall, InFlightCalls, OutgoingCall
from mcp_rollout.gateway.connection.redaction import Redactor
from mcp_rollout.gateway.connection.server_requests import answer_round
from mcp_rollout.gateway.connection.tool_listing import raw_tools
from mcp_rollout.gateway.errors import CallTimeout, GatewayError, ProtocolError, ServerUnavailable
from mcp_rollout.gateway.schemas.check import check_output
from mcp_rollout.gateway.schemas.compiled import PROGRAMS
from mcp_rollout.gateway.transport.delivery import Broke, Delivery, GatewayAnswer
from mcp_rollout.gateway.transport.link import Link
from mcp_rollout.gateway.transport.messages import Json
from mcp_rollout.gateway.transport.results import PlainResult, read_answer, read_result
from mcp_rollout.gateway.types import Role, ToolResult

MCP_FAILURES = (MCPError, ValidationError, ValueError, RuntimeError, OSError, anyio.BrokenResourceError)
"""What mcp raises when a request fails."""
MOST_ROUNDS = 10
"""How often a server may answer a call with "come back with this state" before that breaks the protocol."""
ROUND_S = 0.05
"""Before a server that has asked nothing is called again."""


class Stamps:
    """What mcp's session adds to each call of a tool: the protocol version and the client in `_meta`, and headers.

    It is asked once for each tool, except where it mirrors arguments into headers.
    """

    def __init__(self) -> None:
        self._session: ClientSession | None = None
        self._handshake: object = None
        self._mirrored: Mapping[str, Any] = {}
        """As `sdk.header_maps`."""
        self._of_tools: dict[str, tuple[Json, Mapping[str, str]]] = {}

    def of_tool(self, session: ClientSession, params: Json) -> tuple[Json, Mapping[str, str]]:
        """What is added to `_meta`, and the headers."""
        handshake, name = session.discover_result or session.initialize_result, params["name"]
        if session is not self._session or handshake is not self._handshake:
            self._session, self._handshake, self._of_tools = session, handshake, {}
            self._mirrored = sdk.header_maps(session)
        mirrored = self._mirrored.get(name)
        if not mirrored and (known := self._of_tools.get(name)) is not None:
            return known
        meta: Json = {}
        options = sdk.stamp(session, {"method": "tools/call", "params": {**params, "_meta": meta}})
        added = meta, options.get("headers") or {}
        if not mirrored:
            self._of_tools[name] = added
        return added


class Calls:
    """The requests of one connection. Its owner sets `session` while it is open."""

    def __init__(
        self, server: str, config: ServerConfig, link: Link, in_flight: InFlightCalls, redactor: Redactor
    ) -> None:
        self._server, self._config = server, config
        self._link, self._in_flight, self._redactor = link, in_flight, redactor
        self._stamps = Stamps()
        self.deadlines: Callable[[float], Deadlines] = cache(Deadlines)
        """By the seconds that a call may take, of which a configuration has few."""
        self.session: ClientSession | None = None
        self.on_timeout: Callable[[], None] = lambda: None
        """Called for each call that was not answered in time."""
        self.answers = 0
        """How many calls the server has answered."""
        self.forgotten = ""
        """Why the server takes no further request of this session; empty while it does."""
        self.failures = MCP_FAILURES
        self.notes_delivery = False
        """Whether the transport notes when requests leave and passes notifications to the link. Otherwise progress
        comes through mcp's callbacks, and every request counts as sent."""

    async def call(self, call: OutgoingCall, meta: Mapping[str, Any]) -> ToolResult:
        """As `Connection.call`."""
        try:
            with call.in_flight() as in_flight:
                result = await self._call(call, meta, in_flight)
        except GatewayError as error:
            # `from` its cause: chained to `error` itself, a traceback would show the secrets.
            raise self._redactor.error(error) from error.__cause__
        return await self._redactor.result(result) if self._redactor.needed else result

    async def _call(self, call: OutgoingCall, meta: Mapping[str, Any], in_flight: InFlightCall) -> ToolResult:
        tool = call.tool
        where = {"server": tool.server, "tool": tool.name}
        session = self.open_session(**where)
        in_flight.redact = self._redactor.json
        # Such a transport does not say when a request leaves, so it counts as sent: no resend without an annotation.
        if not self.notes_delivery:
            in_flight.left = True
        token = self._in_flight.open(in_flight)
        if self.notes_delivery:
            # Elsewhere mcp's dispatcher sets a token of its own, for its progress callback.
            meta = {**meta, "progressToken": token}
        began = time.perf_counter()
        answer: mcp.CallToolResult | PlainResult | None = None
        failed: Exception | None = None
        with Deadline(self.deadlines(call.timeout_s)) as in_flight.deadline:
            try:
                if tool.reads_resource:
                    answer = await _read_resource(session, call.arguments["uri"], meta)
                else:
                    answer = await self._call_tool(session, tool.name, call.arguments, meta, in_flight)
            # An answerer's failure outranks what the server then made of it.
            except MCP_FAILURES as error:
                if in_flight.broken is not None:
                    raise in_flight.broken from error
                if in_flight.raw is not None and isinstance(error, MCPError):
                    said = error.error.model_dump(exclude_none=True)
                    in_flight.raw.error = in_flight.redact(said)
                failed = error
            finally:
                # Also when cancelled: a late message with this token must not reach a call that has ended.
                del self._in_flight.running[token]
                self._end_where_forgotten()
        if failed is not None:
            outcome = await self.outcome(failed, in_flight, repeatable=tool.safe_to_resend, **where)
            if isinstance(outcome, GatewayError):
                raise outcome from failed
            return outcome
        # Again, since a server may answer normally after its request was refused.
        if in_flight.broken is not None:
            raise in_flight.broken
        # Only the deadline leaves the block without an answer: every other way out returns or raises.
        if answer is None:
            self.on_timeout()
            unanswered = f"no answer within {call.timeout_s:g} s"
            if self._link.answered_another:  # not the policy's doing, though the process may be its own
                problem = f"{unanswered}, and the server gave another call two answers: it mixes their ids up"
                raise ProtocolError(problem, **where)
            raise CallTimeout(unanswered, **where)
        self.answers += 1
        try:
            result = read_result(
                answer,
                trusted=self._config.trusted,
                elapsed_s=time.perf_counter() - began,
                show_structured=self._config.show_structured and tool.role is None,
            )
        except ValueError as error:
            raise ProtocolError(str(error), **where) from error
        # A list of tasks may be long, and its reader checks each task.
        if tool.output_schema is not None and not result.is_error and tool.role is not Role.TASKS:
            structured = answer.structured_content
            program = PROGRAMS.get(tool.output_schema, subject=f"{tool.server}/{tool.name} (output)")
            fits = program is None or program.fits(structured)
            if not fits and (fault := check_output(tool, structured)) is not None:
                raise ProtocolError(f"the result does not fit the tool's own output schema: {fault}", **where)
        return result

    async def _call_tool(
        self,
        session: ClientSession,
        name: str,
        arguments: Mapping[str, Any],
        meta: Mapping[str, Any],
        call: InFlightCall,
    ) -> mcp.CallToolResult | PlainResult:
        """One `tools/call`. A server that needs input first is called again with the answers, as often as it may ask.

        Raises:
            RequestRefused: it needs input that no configured component gives.
            ValueError: it came back too often with nothing but a request to call again.
        """
        # Multi round-trip requests of 2026-07-28: `InputRequiredResult`, then the same call with the state and the
        # answers.
        state: str | None = None
        answers: Json | None = None
        on_progress = None if self.notes_delivery else call.on_progress
        for _ in range(MOST_ROUNDS):
            params: Json = {"name": name, "arguments": arguments}
            if state is not None:
                params["requestState"] = state
            if answers is not None:
                params["inputResponses"] = answers
            added, headers = self._stamps.of_tool(session, params)
            request: Json = {"method": "tools/call", "params": {**params, "_meta": {**meta, **added}}}
            raw = await self._link.channel.send(session, request, headers, call, on_progress)
            if call.raw is not None:
                call.raw.result = call.redact(raw)
            answer = read_answer(raw, session.protocol_version or LATEST_HANDSHAKE_VERSION)
            if not isinstance(answer, mcp.InputRequiredResult):
                return answer
            call.round_done()
            state, answers = answer.request_state, None
            if answer.input_requests:
                answers = await answer_round(call, answer.input_requests)
            else:
                await anyio.sleep(ROUND_S)
        raise ValueError(f"the server postponed its answer {MOST_ROUNDS} times")

    async def _has_forgotten(self, error: Exception, call: Delivery) -> bool:
        """Whether a request failed because the server has lost the session, as after a restart.

        The specification has HTTP 404 for that, and servers have words of their own. So they are asked for what they
        answered when the connection began: one that refuses even that needs a new session. Whether it ran the request
        before is unknown, and so it broke.
        """
        session = self.session
        if session is None or session.protocol_version in MODERN_PROTOCOL_VERSIONS or not refuses(error, call):
            return False
        with Delivery() as asked, anyio.move_on_after(self._config.call_timeout_s):
            try:
                await sdk.list_page(session, None)
            except MCP_FAILURES as again:
                unknown = isinstance(again, MCPError) and again.code == mcp.METHOD_NOT_FOUND  # it has no tools
                if self._link.over.is_set() or unknown or not refuses(again, asked):
                    return False
                self.forgotten = f"the server has lost its session, and refuses even a listing: {describe(again)}"
                call.break_off(Broke.LINE, self.forgotten)
                self._end_where_forgotten()
                return True
        return False

    def _end_where_forgotten(self) -> None:
        """End the connection once the calls that were under way are over: some may still be answered."""
        if self.forgotten and not self._in_flight.running:
            self._link.end(self.forgotten)

    async def list_raw(self, *, timeout_s: float) -> list[Any]:
        """As `Connection.list_raw`."""
        try:
            return await self._list_raw(timeout_s)
        except GatewayError as error:
            raise self._redactor.error(error) from error.__cause__

    async def _list_raw(self, timeout_s: float) -> list[Any]:
        where = {"server": self._server, "tool": "tools/list"}
        session = self.open_session(**where)
        with Delivery() as delivery, anyio.move_on_after(timeout_s):
            try:
                return await raw_tools(session, self._config.max_message_bytes)
            except MCP_FAILURES as error:
                raise as_error(self._outcome(error, delivery, repeatable=True, **where), **where) from error
        raise CallTimeout(f"no answer within {timeout_s:g} s", **where)

    def open_session(self, server: str, tool: str) -> ClientSession:
        """mcp's session. Raises `ServerUnavailable` where it is not open."""
        if self.session is None or self._link.over.is_set() or self.forgotten:
            reason = self._link.down or self.forgotten or "not connected"
            unavailable = ServerUnavailable(reason, server=server, tool=tool)
            unavailable.may_resend = True  # nothing was sent
            raise unavailable
        return self.session

    async def outcome(
        self, error: Exception, delivery: Delivery, *, repeatable: bool, server: str, tool: str
    ) -> GatewayError | ToolResult:
        """What a failed request means: an error to raise, or the server's refusal, for the policy to read.

        Where the server has lost the session, `delivery` says that the request broke.
        """
        # First of all: the line may break while the server is asked, and an answered call stays answered.
        outcome = self._outcome(error, delivery, repeatable=repeatable, server=server, tool=tool)
        if await self._has_forgotten(error, delivery):
            outcome = self._outcome(error, delivery, repeatable=repeatable, server=server, tool=tool)
        return outcome

    def _outcome(
        self, error: Exception, delivery: Delivery, *, repeatable: bool, server: str, tool: str
    ) -> GatewayError | ToolResult:
        if isinstance(error, MCPError) and isinstance(error.data, GatewayAnswer):
            delivery = error.data.delivery or delivery
        if delivery.broke is None and self.closed_by_mcp(error):
            delivery.break_off(Broke.LINE, "the connection ended")
        outcome = failure(error, delivery, down=self._link.down, repeatable=repeatable, server=server, tool=tool)
        if delivery.broke is Broke.SESSION:
            # The server has forgotten the protocol session, so every further request on this connection would get a
            # 404, too.
            self._link.end(delivery.reason)
        return outcome

    def closed_by_mcp(self, error: Exception) -> bool:
        """Whether mcp raised this because its streams ended. Servers use its code and its words for errors of their
        own, so that the state of mcp's dispatcher decides."""
        if not isinstance(error, MCPError) or error.code != mcp.CONNECTION_CLOSED:
            return False
        not_written = isinstance(error.__context__, anyio.BrokenResourceError | anyio.ClosedResourceError)
        lost = not self.notes_delivery or bool(self._link.down)
        return not_written or self.session is None or sdk.is_closed(self.session, otherwise=lost)


async def _read_resource(session: ClientSession, uri: str, meta: Mapping[str, Any]) -> mcp.CallToolResult:
    read = await session.read_resource(uri, meta=cast("Any", dict(meta)))
    texts = [part.text for part in read.contents if isinstance(part, mcp.TextResourceContents)]
    content = [mcp.TextContent(text=text) for text in texts or ["it has no text"]]
    return mcp.CallToolResult(content=[*content], is_error=not texts)
