"""Calls within sessions of the handshake's era that need no stream: answered as documents, without mcp's server.

Most calls are answered with nothing before the result. One that takes longer, or within which the server sends
anything, goes on while mcp's server takes its HTTP request over and opens a stream for it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import anyio
from anyio.abc import TaskGroup
from mcp_types import INVALID_REQUEST

from mcp_rollout.gateway.connection.relay import ErrorAnswer, Json
from mcp_rollout.gateway.serve.bearers import Refused
from mcp_rollout.gateway.serve.client_relay import Begin, ClientRelay, PassedRequest
from mcp_rollout.gateway.serve.config import ServeConfig

_MOST_WAITING = 1000


class RunningCall(PassedRequest):
    """One call. As a `Relay` it keeps what the server sends until the client has a stream for it."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[str, Mapping[str, Any]]] = []
        self._streamed, self._ended = anyio.Event(), anyio.Event()
        self.settled = anyio.Event()
        """Set when it has ended, or needs a stream."""

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """As `Relay.notify`."""
        if self._relay is not None:
            self._relay.notify(method, params)
        elif len(self._waiting) < _MOST_WAITING:
            self._waiting.append((method, params))
        # Also for what is dropped: a server that sends so much needs a stream.
        self.settled.set()

    async def request(self, method: str, params: Json) -> Json:
        """As `Relay.request`."""
        # Only a stream can carry a question. Where the client takes none, `give_up` ends the wait.
        self.settled.set()
        await self._streamed.wait()
        if self._relay is None:
            raise ErrorAnswer({"code": INVALID_REQUEST, "message": f"the client took no stream for {method}"})
        return await self._relay.request(method, params)

    def _over(self) -> None:
        self._ended.set()
        self.settled.set()

    @property
    def answered(self) -> bool:
        """Whether it has ended, and its server has sent nothing before."""
        return self._ended.is_set() and not self._waiting

    def outcome(self) -> Json:
        """The result. Raises `ErrorAnswer`, `GatewayError`."""
        if isinstance(self._outcome, dict):
            return self._outcome
        raise self._outcome or ErrorAnswer({"code": -32800, "message": "the request was cancelled"})

    async def through(self, relay: ClientRelay) -> Json:
        """The outcome, once the client has a stream: what the server sends passes there."""
        # No `await` until `_relay` is set: what the server sends next would overtake what waits.
        for method, params in self._waiting:
            relay.notify(method, params)
        self._waiting.clear()
        self._relay = relay
        self._streamed.set()
        try:
            await self._ended.wait()
        except anyio.get_cancelled_exc_class():
            # The call runs in a task of the server's, which the cancellation of this request does not reach.
            self.scope.cancel()
            raise
        return self.outcome()

    def give_up(self) -> None:
        """Cancel it, and answer what its server asks: the client has taken no stream."""
        self.scope.cancel()
        # The server's question waits in a task of its connection, which the cancellation does not reach.
        self._streamed.set()

    async def taken_over(self) -> None:
        """Return when the client has a stream for it."""
        await self._streamed.wait()


class RunningCalls:
    """Calls by session and request, until they are answered or taken over."""

    def __init__(self, tasks: TaskGroup, config: ServeConfig) -> None:
        self._tasks = tasks
        self._stream_after_s, self._take_over_s = config.stream_after_s, config.take_over_s
        self._calls: dict[tuple[str, str], RunningCall] = {}
        self._posted: set[tuple[str, str]] = set()
        """Requests that mcp's server answers. It tells the ids 1 and "1" not apart."""

    @contextmanager
    def posted(self, session: str, number: object, *, begun: bool) -> Generator[None]:
        """While mcp's server answers a request, no other of its session may have its id.

        Args:
            begun: Whether `answer` was asked first, and may have begun the call.

        Raises:
            Refused: one is under way. mcp's server would answer neither: it would lose the stream of the first.
        """
        key = session, str(number)
        self._check(key, key in self._posted or (not begun and key in self._calls))
        self._posted.add(key)
        try:
            yield
        finally:
            self._posted.discard(key)
            if (call := self._calls.get(key)) is not None and call.scope.cancel_called:
                del self._calls[key]

    def _check(self, key: tuple[str, str], is_repeated: bool) -> None:
        if is_repeated:
            raise Refused(400, f"a request with the id {key[1][:100]} is under way in this session")

    async def answer(self, session: str, number: object, begin: Begin) -> RunningCall | None:
        """The call, where it was answered without a stream; None if mcp's server is to go on with it.

        Raises:
            Refused: as `posted`.
        """
        key = session, str(number)
        self._check(key, key in self._posted or key in self._calls)
        call = self._calls[key] = RunningCall()
        # In the server's task group: the call goes on while mcp's server takes the HTTP request over.
        self._tasks.start_soon(call.run, begin)
        with anyio.move_on_after(self._stream_after_s):
            await call.settled.wait()
        # Not whether the time was over: the call may have ended in the same moment.
        if call.answered:
            del self._calls[key]
            call.give_up()  # a server may have asked, and ended the call without the answer
            return call
        self._tasks.start_soon(self._forget, key, call)
        return None

    def has(self, session: str, number: object) -> bool:
        """Whether a call has begun that mcp's server has not taken over yet."""
        return (session, str(number)) in self._calls

    def take(self, session: str, number: object) -> RunningCall | None:
        """The call that mcp's server is to go on with, if it has begun."""
        return self._calls.pop((session, str(number)), None)

    def cancel(self, session: str, number: object) -> None:
        """Cancel a call that its client gives up."""
        if (call := self._calls.get((session, str(number)))) is not None:
            call.scope.cancel()

    async def _forget(self, key: tuple[str, str], call: RunningCall) -> None:
        with anyio.move_on_after(self._take_over_s):
            await call.taken_over()
        # Compared, since a client may give the number to another call once this one was taken over.
        if self._calls.get(key) is call:
            call.give_up()
            # Else kept until mcp's server is done with the request: asking only now, it would begin the call again.
            if key not in self._posted:
                del self._calls[key]
