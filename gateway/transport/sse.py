"""The older SSE transport: one event stream for all messages of the server, one POST for each of ours.

mcp's own client stops writing after one failed POST. Here a POST that fails, fails only the call it carries.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
from anyio.abc import TaskStatus
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, jsonrpc_message_adapter

from gateway.errors import ServerUnavailable
from gateway.transport.delivery import DELIVERY, Broke, Delivery
from gateway.transport.http_client import (
    Address,
    Layer,
    describe,
    drain,
    load_certificates,
    note_failure,
    open_client,
    redirected,
)
from gateway.transport.lines import parse_line, unusable_answer
from gateway.transport.link import FOR_MCP, Link
from mcp_wire.lines import LineSplitter, Oversize
from mcp_wire.streams import OpenStream

if TYPE_CHECKING:
    from gateway.config.models import ServerConfig

_DATA = b"data:"
_ENDS = 1024
"""Bytes kept of each end of a message that is too long; one of them has its id."""
_SPARE_BYTES = 16
"""Of a line beside the message in it."""


class SseTransport:
    """The pair of streams that mcp works on; entered and left by the connection's owner task.

    Raises:
        ServerUnavailable: on entry, when there is no such stream.
    """

    def __init__(
        self, config: ServerConfig, link: Link, *, posts: anyio.CapacityLimiter, authorize: Layer | None
    ) -> None:
        assert config.url is not None
        self._config, self._link = config, link
        self._address = Address(config.url)
        self._authorize, self._posts = authorize, posts
        self._stack = AsyncExitStack()
        self._endpoint = httpx2.URL(self._address.url)
        self._splitter = LineSplitter(config.max_message_bytes + _SPARE_BYTES)

    async def __aenter__(self) -> tuple[MemoryObjectReceiveStream[SessionMessage], _Posts]:
        await load_certificates()
        try:
            self._client = await self._stack.enter_async_context(
                open_client(self._config, self._address, authorize=self._authorize)
            )
            self._messages, received = anyio.create_memory_object_stream[SessionMessage](0)
            self._stack.callback(received.close)
            self._stack.callback(self._messages.close)
            tasks = await self._stack.enter_async_context(anyio.create_task_group())
            # On the stack above the group, so it runs first: the reader never ends by itself.
            self._stack.callback(tasks.cancel_scope.cancel)
            # Returns once the server has named its endpoint; until then there is no address to post to.
            await tasks.start(self._read)
        except BaseException:  # cleanup, also when cancelled: `__aexit__` is not called then
            await self._stack.aclose()
            raise
        timeout = httpx2.Timeout(self._config.start_timeout_s, read=self._config.call_timeout_s)
        return received, _Posts(self._client, self._link, self._endpoint, timeout, self._posts)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(exc_type, exc_val, exc_tb)

    async def _read(self, *, task_status: TaskStatus[None]) -> None:
        try:
            reason = await self._read_stream(task_status)
        except (httpx2.TransportError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            self._link.note_transport_error(error)
            reason = describe(error)
        # Before the stream: when mcp finds it closed, the reason is there.
        self._link.end(reason)
        await self._messages.aclose()

    async def _read_stream(self, task_status: TaskStatus[None]) -> str:
        """Read events until there are no more; returns how it ended."""
        headers = {"accept": "text/event-stream", "cache-control": "no-store"}
        started = False
        async with _stream(self._client, "GET", self._address.url, headers=headers) as response:
            if response.status_code != 200:
                self._link.note_status(response.status_code)
                return f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
            event, data, size = "", list[bytes](), 0
            async for chunk in response.aiter_bytes():
                for line in self._splitter.feed(chunk):
                    if isinstance(line, Oversize):
                        await self._refuse(line)
                        continue
                    line = line.rstrip(b"\r")
                    if line.startswith(b"event:"):
                        event = line[len(b"event:") :].strip().decode("utf-8", "replace")
                    elif line.startswith(_DATA):
                        # An event may have several data lines, and all of them together are the message.
                        data.append(line[len(_DATA) :].removeprefix(b" "))
                        size += len(line)
                    elif not line:
                        if event == "endpoint" and data and not started:
                            self._meet(data[0].strip().decode("utf-8", "replace"))
                            started = True
                            task_status.started()
                        elif event in ("message", "") and data:
                            await self._accept(b"\n".join(data))
                        event, data, size = "", [], 0
                    if size > self._config.max_message_bytes + _SPARE_BYTES:
                        whole = b"\n".join(data)
                        await self._refuse(Oversize(whole[:_ENDS], whole[-_ENDS:], len(whole)))
                        data, size = [], 0
        return "the server closed its event stream"

    def _meet(self, endpoint: str) -> None:
        base = httpx2.URL(self._address.url)
        found = base.join(endpoint)
        # Posts carry the entry's headers and secrets.
        if (found.scheme, found.host, found.port) != (base.scheme, base.host, base.port):
            raise ServerUnavailable("the server names an endpoint of another origin")
        self._endpoint = found

    async def _accept(self, data: bytes) -> None:
        message = parse_line(data) if data.strip() else None
        if isinstance(message, JSONRPCNotification) and message.method not in FOR_MCP:
            self._link.on_notification(message.method, message.params, None)
        elif message is not None:
            await self._messages.send(SessionMessage(message))

    async def _refuse(self, line: Oversize) -> None:
        answered = Oversize(line.head.removeprefix(_DATA), line.tail, line.size).answered_id()
        if answered is not None:
            problem = f"the result has {line.size} bytes, max_message_bytes is {self._config.max_message_bytes}"
            await self._messages.send(
                SessionMessage(jsonrpc_message_adapter.validate_python(unusable_answer(answered, problem)))
            )


@asynccontextmanager
async def _stream(
    client: httpx2.AsyncClient, method: str, url: httpx2.URL | str, **options: Any
) -> AsyncGenerator[httpx2.Response]:
    """As `AsyncClient.stream`, redirected as `redirected` allows."""
    for left in range(client.max_redirects, -1, -1):
        async with client.stream(method, url, follow_redirects=False, **options) as response:
            location = response.headers.get("location", "").encode()
            target = redirected(method, str(response.request.url), response.status_code, location)
            if target is None or not left:
                yield response
                return
        url = target


class _Posts(OpenStream):
    """The write stream. A message is posted in its sender's context."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        link: Link,
        endpoint: httpx2.URL,
        timeout: httpx2.Timeout,
        posts: anyio.CapacityLimiter,
    ) -> None:
        self._client, self._link, self._endpoint, self._timeout = client, link, endpoint, timeout
        self._posts = posts

    async def send(self, item: SessionMessage, /) -> None:
        """Post a message. Raises what mcp takes as a line that is down; what happened is noted on the `Delivery`."""
        delivery = DELIVERY.get() or Delivery()
        body = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        headers = {"content-type": "application/json"}
        try:
            # The answer comes over the event stream: a post takes its descriptor only for as long as it is accepted.
            async with (
                self._posts if not delivery.nested else nullcontext(),
                _stream(
                    self._client, "POST", self._endpoint, content=body, headers=headers, timeout=self._timeout
                ) as response,
            ):
                await drain(response)
        except httpx2.TransportError as error:
            self._link.note_transport_error(error)
            self._link.trouble = note_failure(error, delivery)
            raise anyio.BrokenResourceError from error
        if response.status_code >= 300:
            self._link.note_status(response.status_code)
            self._link.trouble = reason = f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
            if delivery.broke is not Broke.REJECTED:
                delivery.break_off(Broke.LINE, reason)
            raise anyio.BrokenResourceError
