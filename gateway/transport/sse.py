"""A server behind the older SSE transport: one stream of events for everything it says, one POST for each message.

mcp's own client gives up all writing after one failed POST. Here a POST that fails, fails the call it carries.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import anyio
import httpx2
from anyio.abc import TaskStatus
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared._httpx_utils import stream_within_origin
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCNotification

from gateway.config.models import ServerConfig
from gateway.errors import ServerUnavailable, StartFault
from gateway.transport.address import Address
from gateway.transport.call_guard import NOT_SENT
from gateway.transport.delivery import DELIVERY, Delivery
from gateway.transport.discarded_bodies import drain
from gateway.transport.http import open_client
from gateway.transport.lines import LineSplitter, Oversize, parse_line
from gateway.transport.link import FOR_MCP, Link
from gateway.transport.oauth import Authority
from gateway.transport.wire import OVERSIZE

_DATA = b"data:"
_SPARE_BYTES = 16
"""Of a line beside the message in it."""


class SseTransport:
    """The pair of streams that mcp works on; entered and left by the connection's owner task.

    Raises:
        ServerUnavailable: on entry, when there is no such stream.
    """

    def __init__(self, config: ServerConfig, link: Link, authority: Authority | None) -> None:
        assert config.url is not None
        self._config, self._link = config, link
        self._address = Address(config.url)
        self._authority = authority
        self._stack = AsyncExitStack()
        self._endpoint = httpx2.URL(self._address.url)
        self._splitter = LineSplitter(config.max_message_bytes + _SPARE_BYTES)

    async def __aenter__(self) -> tuple[MemoryObjectReceiveStream[SessionMessage], _Posts]:
        try:
            self._client = await self._stack.enter_async_context(
                open_client(self._config, self._address, self._authority)
            )
            self._messages, received = anyio.create_memory_object_stream[SessionMessage](0)
            self._stack.callback(received.close)
            self._stack.callback(self._messages.close)
            tasks = await self._stack.enter_async_context(anyio.create_task_group())
            self._stack.callback(tasks.cancel_scope.cancel)
            await tasks.start(self._read)
        except BaseException:
            await self._stack.aclose()
            raise
        timeout = httpx2.Timeout(self._config.start_timeout_s, read=self._config.call_timeout_s)
        return received, _Posts(self._client, self._link, self._endpoint, timeout)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(exc_type, exc_val, exc_tb)

    async def _read(self, *, task_status: TaskStatus[None]) -> None:
        try:
            reason = await self._read_stream(task_status)
        except (httpx2.TransportError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            self._link.fault = StartFault.UNREACHABLE if isinstance(error, httpx2.ConnectError) else None
        self._link.end(reason)
        await self._messages.aclose()

    async def _read_stream(self, task_status: TaskStatus[None]) -> str:
        """Read events until there are no more; returns how it ended."""
        headers = {"accept": "text/event-stream", "cache-control": "no-store"}
        started = False
        async with stream_within_origin(self._client, "GET", self._address.url, headers=headers) as response:
            if response.status_code != 200:
                self._link.fault = StartFault.UNAUTHORIZED if response.status_code in (401, 403) else None
                return f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
            event = ""
            async for chunk in response.aiter_bytes():
                for line in self._splitter.feed(chunk):
                    if isinstance(line, Oversize):
                        await self._refuse(line)
                        continue
                    line = line.rstrip(b"\r")
                    if line.startswith(b"event:"):
                        event = line[len(b"event:") :].strip().decode("utf-8", "replace")
                    elif line.startswith(_DATA) and event == "endpoint" and not started:
                        self._meet(line[len(_DATA) :].strip().decode("utf-8", "replace"))
                        started = True
                        task_status.started()
                    elif line.startswith(_DATA) and event in ("message", ""):
                        await self._accept(line[len(_DATA) :])
                    elif not line:
                        event = ""
        return "the server closed its event stream"

    def _meet(self, endpoint: str) -> None:
        base = httpx2.URL(self._address.url)
        found = base.join(endpoint)
        if (found.scheme, found.host, found.port) != (base.scheme, base.host, base.port):
            raise ServerUnavailable("the server names an endpoint of another origin")
        self._endpoint = found

    async def _accept(self, data: bytes) -> None:
        message = parse_line(data) if data.strip() else None
        if isinstance(message, JSONRPCNotification) and message.method not in FOR_MCP:
            self._link.hear(message.method, message.params, None)
        elif message is not None:
            await self._messages.send(SessionMessage(message))

    async def _refuse(self, line: Oversize) -> None:
        answered = Oversize(line.head.removeprefix(_DATA), line.tail, line.size).answered_id()
        if answered is not None:
            problem = f"the result has {line.size} bytes, max_message_bytes is {self._config.max_message_bytes}"
            error = ErrorData(code=OVERSIZE, message=problem)
            await self._messages.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=answered, error=error)))


class _Posts:
    """The write half. A message goes out in the context of whoever sends it."""

    def __init__(self, client: httpx2.AsyncClient, link: Link, endpoint: httpx2.URL, timeout: httpx2.Timeout) -> None:
        self._client, self._link, self._endpoint, self._timeout = client, link, endpoint, timeout

    async def send(self, item: SessionMessage, /) -> None:
        """Raises what mcp takes for a line that is down; what happened stands in `DELIVERY`."""
        delivery = DELIVERY.get() or Delivery()
        body = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        headers = {"content-type": "application/json"}
        try:
            async with stream_within_origin(
                self._client, "POST", self._endpoint, content=body, headers=headers, timeout=self._timeout
            ) as response:
                await drain(response)
        except httpx2.TransportError as error:
            self._link.trouble = reason = f"{type(error).__name__}: {error}".rstrip(": ")
            if isinstance(error, NOT_SENT):
                delivery.refused = reason
            else:
                delivery.handed_over, delivery.lost = True, reason
            raise anyio.BrokenResourceError from error
        delivery.handed_over = True
        if response.status_code >= 400:
            self._link.trouble = reason = f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
            if response.status_code >= 500:
                delivery.lost = reason
            else:
                delivery.refused = reason
            raise anyio.BrokenResourceError

    async def aclose(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        pass
