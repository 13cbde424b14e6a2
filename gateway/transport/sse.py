"""The older SSE transport: one event stream for all messages of the server, one POST for each of ours.

mcp's own client stops writing after one failed POST. Here a POST that fails, fails only the call it carries.
"""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from types import TracebackType

import anyio
from anyio.abc import TaskStatus
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.errors import ServerUnavailable
from mcp_rollout.gateway.transport.delivery import DELIVERY, Broke, Delivery
from mcp_rollout.gateway.transport.http_address import load_certificates, same_origin
from mcp_rollout.gateway.transport.http_answer import PIECE_BYTES, HttpFault, StatusFault, joined
from mcp_rollout.gateway.transport.http_connection import HttpConnection, HttpConnections
from mcp_rollout.gateway.transport.http_exchange import Exchanges, explain_start
from mcp_rollout.gateway.transport.link import Link
from mcp_rollout.gateway.transport.messages import Json, parse_message, read_line, unusable_answer
from mcp_rollout.gateway.transport.unmatched import Unanswered
from mcp_rollout.mcp_wire.lines import LineSplitter, Oversize
from mcp_rollout.mcp_wire.streams import OpenStream

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

    def __init__(self, config: ServerConfig, link: Link, *, connections: HttpConnections) -> None:
        self._config, self._link = config, link
        self._exchanges = Exchanges(config, connections=connections)
        self._stack = AsyncExitStack()
        self._endpoint = ""
        self._unanswered = Unanswered()
        self._splitter = LineSplitter(config.max_message_bytes + _SPARE_BYTES)

    async def __aenter__(self) -> tuple[MemoryObjectReceiveStream[SessionMessage], _Posts]:
        await load_certificates()
        try:
            self._messages, received = anyio.create_memory_object_stream[SessionMessage](0)
            self._stack.callback(received.close)
            self._stack.callback(self._messages.close)
            self._stack.callback(self._exchanges.close, "the connection was closed")
            tasks = await self._stack.enter_async_context(anyio.create_task_group())
            # On the stack above the group, so it runs first: the reader never ends by itself.
            self._stack.callback(tasks.cancel_scope.cancel)
            # Returns once the server has named its endpoint; until then there is no address to post to.
            await tasks.start(self._read)
        except BaseException:  # cleanup, also when cancelled: `__aexit__` is not called then
            await self._stack.aclose()
            raise
        most_s = self._config.call_timeout_s
        return received, _Posts(self._link, self._exchanges, self._endpoint, most_s, self._unanswered)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(exc_type, exc_val, exc_tb)

    async def _read(self, *, task_status: TaskStatus[None]) -> None:
        try:
            reason = await self._read_stream(task_status)
        except HttpFault as fault:
            explain_start(self._link, fault)
            reason = fault.reason
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            reason = type(error).__name__
        # Before the stream: when mcp finds it closed, the reason is there.
        self._link.end(reason)
        await self._messages.aclose()

    async def _read_stream(self, task_status: TaskStatus[None]) -> str:
        """Read events until there are no more; returns how it ended."""
        headers = {"accept": "text/event-stream", "cache-control": "no-store"}
        connection = await self._exchanges.open("GET", headers, None, Delivery(), silent_s=math.inf)
        try:
            if connection.answer.status != 200:
                raise StatusFault(connection.answer)
            await self._read_events(connection, task_status)
        finally:
            # Not used again: a server that ends its one stream is mostly about to end.
            connection.close()
            connection.leave()
        return "the server closed its event stream"

    async def _read_events(self, connection: HttpConnection, task_status: TaskStatus[None]) -> None:
        event, data, started = "", None, False
        answer = connection.answer
        while True:
            ended = answer.complete and len(answer.body) <= PIECE_BYTES
            piece = answer.take(PIECE_BYTES)
            for line in self._splitter.feed(piece):
                if isinstance(line, Oversize):
                    await self._refuse(line)
                    continue
                line = line.rstrip(b"\r")
                if line.startswith(b"event:"):
                    event = line[len(b"event:") :].strip().decode("utf-8", "replace")
                elif line.startswith(_DATA):
                    # An event may have several data lines, and all of them together are the message.
                    value = line[len(_DATA) :].removeprefix(b" ")
                    data = value if data is None else joined(data, value)
                elif not line:
                    if event == "endpoint" and data and not started:
                        self._meet(data.partition(b"\n")[0].strip().decode("utf-8", "replace"))
                        started = True
                        task_status.started()
                    elif event in ("message", "") and data:
                        await self._accept(bytes(data))
                    event, data = "", None
                if data is not None and len(data) > self._config.max_message_bytes:
                    await self._refuse(Oversize(bytes(data[:_ENDS]), bytes(data[-_ENDS:]), len(data)))
                    data = None
            if ended:
                connection.check()
                return
            if not answer.body and not answer.complete:
                await connection.arrival()
            elif len(piece) == PIECE_BYTES:
                await anyio.lowlevel.checkpoint()

    def _meet(self, endpoint: str) -> None:
        url = same_origin(self._exchanges.requests.url, endpoint)
        if url is None:  # posts carry the entry's headers and secrets
            named, own = endpoint.partition("?")[0].rpartition("@")[2][:200], self._exchanges.requests.url
            raise ServerUnavailable(f"the event stream names an endpoint of another origin than {own}: {named}")
        self._endpoint = url

    async def _accept(self, data: bytes) -> None:
        if (found := read_line(data)) is not None:
            await self._take(found)

    async def _take(self, found: Json) -> None:
        for each in self._unanswered.read(found):
            message = parse_message(each)
            if message is not None and self._link.is_for_mcp(message):
                await self._messages.send(SessionMessage(message))

    async def _refuse(self, line: Oversize) -> None:
        answered = Oversize(line.head.removeprefix(_DATA), line.tail, line.size).answered_id()
        if answered is not None:
            problem = f"the result has {line.size} bytes, max_message_bytes is {self._config.max_message_bytes}"
            await self._take(unusable_answer(answered, problem))


class _Posts(OpenStream):
    """The write stream. A message is posted in its sender's context."""

    def __init__(self, link: Link, exchanges: Exchanges, endpoint: str, most_s: float, unanswered: Unanswered) -> None:
        self._link, self._exchanges, self._endpoint, self._most_s = link, exchanges, endpoint, most_s
        self._unanswered = unanswered

    async def send(self, item: SessionMessage, /) -> None:
        """Post a message. Raises what mcp takes as a line that is down; what happened is noted on the `Delivery`."""
        delivery = DELIVERY.get() or Delivery()
        body = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        self._unanswered.wrote(item.message)  # before: its answer comes over the event stream
        try:
            # The answer comes over the event stream: a post takes its connection only for as long as it is accepted.
            with anyio.fail_after(self._most_s):
                connection = await self._exchanges.open("POST", {}, body, delivery, url=self._endpoint)
            connection.leave(answered=True)
            if connection.answer.status >= 300:
                named = f"at {self._endpoint.partition('?')[0]}, which the server's event stream names for messages"
                raise StatusFault(connection.answer, reason=f"{connection.answer.status_line} {named}")
        except (HttpFault, TimeoutError) as error:
            fault = error if isinstance(error, HttpFault) else HttpFault(Broke.LINE, "ReadTimeout")
            explain_start(self._link, fault)
            delivery.break_off(fault.broke, fault.reason)
            if isinstance(item.message, JSONRPCRequest):
                self._unanswered.given_up(item.message.id)
            raise anyio.BrokenResourceError from error
