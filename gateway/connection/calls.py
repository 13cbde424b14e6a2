"""Requests on an open connection: how they are sent and waited for, and what it means when they fail."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import anyio
import mcp_types as mcp
from mcp import MCPError
from mcp.client.session import ClientSession
from pydantic import ValidationError

from gateway.config.models import ServerConfig
from gateway.connection.cleaning import Cleaning
from gateway.connection.exchange import EXCHANGE, Exchange
from gateway.connection.fetch import fetch
from gateway.connection.listing import raw_tools
from gateway.connection.requests import Exchanges
from gateway.connection.rounds import ask
from gateway.errors import CallTimeout, GatewayError, ProtocolError, ServerUnavailable
from gateway.schemas.check import check_output
from gateway.transport.delivery import Delivery
from gateway.transport.link import Link
from gateway.transport.wire import failure, read_result
from gateway.types import ToolDefinition, ToolResult

_FAILURES = (MCPError, ValidationError, ValueError, RuntimeError, OSError, anyio.BrokenResourceError)
"""What mcp raises when a request fails."""


class Calls:
    """The calling side of one connection; its owner sets `session` while it is open."""

    def __init__(self, server: str, config: ServerConfig, link: Link, exchanges: Exchanges, cleaning: Cleaning) -> None:
        self._server, self._config = server, config
        self._link, self._exchanges, self._cleaning = link, exchanges, cleaning
        self.session: ClientSession | None = None
        self.instructions = ""
        """What the server says about itself; a tool may be made of it."""
        self.by_callback = True
        """Whether progress comes through mcp; our own transports hand it to the link, where a flood costs little."""

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
            CallTimeout: it was not answered within `timeout_s`.
            ProtocolError: the answer is not what the protocol or the tool's own output schema allows.
        """
        try:
            result = await self._call(tool, arguments, meta, timeout_s, exchange)
        except GatewayError as error:
            raise self._cleaning.error(error) from error.__cause__
        return self._cleaning.result(result)

    async def _call(
        self,
        tool: ToolDefinition,
        arguments: Mapping[str, Any],
        meta: Mapping[str, Any],
        timeout_s: float,
        exchange: Exchange | None,
    ) -> ToolResult:
        server, name = tool.server, tool.name
        session = self._open_session(server, name)
        exchange = exchange or Exchange(server=server, tool=name)
        exchange.clean = self._cleaning.json
        outer = EXCHANGE.set(exchange)
        progress_token = self._exchanges.open(exchange)
        if not self.by_callback:
            meta = {**meta, "progress_token": progress_token}
        began = time.perf_counter()
        answer: mcp.CallToolResult | None = None
        with Delivery() as delivery, anyio.move_on_after(timeout_s) as exchange.scope:
            try:
                if tool.resource_kind is None:
                    answer = await ask(session, name, arguments, meta, exchange, delivery, by_callback=self.by_callback)
                else:
                    answer = await fetch(session, name, arguments, instructions=self.instructions, meta=meta)
            except _FAILURES as error:
                if exchange.broken is not None:
                    raise exchange.broken from error
                return self._failed(error, delivery, server, name)
            finally:
                self._exchanges.close(progress_token)
                EXCHANGE.reset(outer)
        if exchange.broken is not None:
            raise exchange.broken
        if answer is None:
            raise CallTimeout(f"no answer within {timeout_s:g} s", server=server, tool=name)
        try:
            result = read_result(answer, trusted=self._config.trusted, elapsed_s=time.perf_counter() - began)
        except ValueError as error:
            raise ProtocolError(str(error), server=server, tool=name) from error
        if tool.output_schema is not None and not result.is_error:
            fault = check_output(tool, answer.structured_content)
            if fault is not None:
                raise ProtocolError(f"off its own output schema: {fault}", server=server, tool=name)
        return result

    async def list_raw(self, *, timeout_s: float) -> list[Any]:
        """The server's tools as it sends them, read by nobody. Raises what `call` raises."""
        server, name = self._server, "tools/list"
        session = self._open_session(server, name)
        with Delivery() as delivery, anyio.move_on_after(timeout_s):
            try:
                return await raw_tools(session)
            except _FAILURES as error:
                refusal = self._failed(error, delivery, server, name)
                raise ProtocolError(refusal.text, server=server, tool=name) from error
        raise CallTimeout(f"no answer within {timeout_s:g} s", server=server, tool=name)

    def _open_session(self, server: str, tool: str) -> ClientSession:
        if self.session is None or self._link.over.is_set():
            raise ServerUnavailable(self._link.down or "not connected", server=server, tool=tool)
        return self.session

    def _failed(self, error: Exception, delivery: Delivery, server: str, tool: str) -> ToolResult:
        """What the server said no with, for the policy to read; raises where it said nothing."""
        outcome = failure(error, delivery, down=self._link.down, server=server, tool=tool)
        if delivery.session_over:
            self._link.end("the server has ended the session")
        if isinstance(outcome, GatewayError):
            raise outcome from error
        return outcome
