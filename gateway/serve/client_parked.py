"""Requests of clients of 2026-07-28 to servers that ask by requests of their own: each becomes a result that asks.

The server's call goes on while its client gathers the answer, and the client's next request takes it up again.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
from anyio.abc import TaskGroup
from mcp_types import INVALID_PARAMS, INVALID_REQUEST

from mcp_rollout.gateway.connection.relay import ErrorAnswer, Json
from mcp_rollout.gateway.serve.client_relay import Begin, ClientRelay, PassedRequest


@dataclass(eq=False, slots=True)
class _Question:
    asked: Json
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: Json = field(default_factory=dict[str, Any])


class ParkedRequest(PassedRequest):
    """One request whose server may ask. As a `Relay` it keeps the server's requests for the client's next result."""

    def __init__(self, answer_s: float) -> None:
        super().__init__()
        self.token = secrets.token_urlsafe(12)
        """Of the questions that are open; each round has another one."""
        self._answer_s = answer_s
        self._questions: dict[str, _Question] = {}
        self._asked = 0
        self._changed = anyio.Event()

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """As `Relay.notify`; dropped while the client has no request under way."""
        if self._relay is not None:
            self._relay.notify(method, params)

    async def request(self, method: str, params: Json) -> Json:
        """As `Relay.request`. The client has the time of an idle lease to answer."""
        if self._relay is None or not self._relay.may_ask(method):
            raise ErrorAnswer({"code": INVALID_REQUEST, "message": f"the client does not take {method}"})
        self._asked += 1
        key = f"q{self._asked}"
        question = self._questions[key] = _Question({"method": method, "params": params})
        self._changed.set()
        with anyio.move_on_after(self._answer_s):
            await question.answered.wait()
            return question.answer
        # Out of the table, or the client's next result would ask it again.
        self._questions.pop(key, None)
        raise ErrorAnswer({"code": INVALID_REQUEST, "message": f"no answer to {method} within {self._answer_s:g} s"})

    def _over(self) -> None:
        self._changed.set()

    async def next(self, relay: ClientRelay, responses: Mapping[str, Any]) -> Json:
        """Take the client's answers; returns the result, or the server's questions that are open."""
        self._relay = relay
        for key, answer in responses.items():
            if (question := self._questions.pop(key, None)) is not None and isinstance(answer, dict):
                question.answer = cast("Json", answer)
                question.answered.set()
        try:
            while self._outcome is None and not self._questions:
                # An event cannot be cleared: each wait has another one.
                self._changed = anyio.Event()
                await self._changed.wait()
        finally:
            # What the server sends from here on has no stream until the client's next request.
            self._relay = None
        if isinstance(self._outcome, Exception):
            raise self._outcome
        if self._outcome is not None:
            return self._outcome
        # Another one: `_forget` of an earlier round would end the time for this answer.
        self.token = secrets.token_urlsafe(12)
        asked = {key: question.asked for key, question in self._questions.items()}
        return {"resultType": "input_required", "inputRequests": asked, "requestState": self.token}


class ParkedRequests:
    """Those whose client is gathering answers, by the token that it sends back."""

    def __init__(self, tasks: TaskGroup, answer_s: float) -> None:
        self._tasks, self._answer_s = tasks, answer_s
        self._parked: dict[str, tuple[str, str, ParkedRequest]] = {}

    async def result(self, handle: str, method: str, params: Json, relay: ClientRelay, begin: Begin) -> Json:
        """The result of a request of a world, or the questions of its server.

        Raises:
            ErrorAnswer: its server's error; or `requestState` is of another request, or of one that has ended.
            GatewayError: what broke.
        """
        state = params.get("requestState")
        if state is None:
            request = ParkedRequest(self._answer_s)
            # In the server's task group: the call outlives the HTTP request that begins it.
            self._tasks.start_soon(request.run, begin)
        else:
            # Taken out before the wait: a second request with the same state is refused, and not answered twice.
            found = self._parked.pop(str(state), None)
            if found is None or found[:2] != (handle, method):
                raise ErrorAnswer({"code": INVALID_PARAMS, "message": "Invalid or expired requestState"})
            request = found[2]
        try:
            result = await request.next(relay, cast("Json", params.get("inputResponses") or {}))
        except anyio.get_cancelled_exc_class():
            # In this era a client cancels by closing its stream. It has no state by which it could come back for this.
            request.scope.cancel()
            raise
        if result.get("requestState") == request.token:
            self._parked[request.token] = handle, method, request
            self._tasks.start_soon(self._forget, request.token)
        return result

    async def _forget(self, token: str) -> None:
        await anyio.sleep(self._answer_s)
        self._parked.pop(token, None)
