"""The calls of a turn that a program makes by itself: each is recorded when it is made, in the order of the completion.

A program repeats a call in its own words. It is found by the id that the program was given for it, else by its name and
arguments, with numbers compared as doubles. Calls that the policy did not write are recorded behind the turn's own.
A program that has asked again for the answer may make its calls again: each gives its result once more, without a call
of the world.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import anyio

from mcp_rollout.gateway.types import CallFault, Content, ContentKind, ToolResult, canonical_json
from mcp_rollout.rollout.loop.calls import UNDER_WAY, sendable, too_many
from mcp_rollout.rollout.loop.context import Context
from mcp_rollout.rollout.loop.filters import refused
from mcp_rollout.rollout.loop.results import show
from mcp_rollout.rollout.trace.events import Mark, MarkKind, ToolEvent, tool_message
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.types import Call, Message, Shown, TurnSession

_NOT_MADE = ToolResult.error("The program did not make this call.")
_SHOWN = 200
"""Characters of a result in a mark."""


@dataclass(eq=False, slots=True)
class _Made:
    """A call of the policy's that the program has made."""

    given: tuple[Shown, bool] = Shown(text=UNDER_WAY.text), True
    over: anyio.Event = field(default_factory=anyio.Event)
    repeated: int = 0


class OutsideCalls:
    """The calls of the last turn.

    Args:
        worlds: By the name that the policy was shown, the exposed name of the world's tool.
        own: Names of the program's own tools.
    """

    def __init__(
        self,
        trace: Trace,
        session: TurnSession,
        context: Context,
        calls: Sequence[Call],
        *,
        worlds: Mapping[str, str],
        own: Collection[str],
    ) -> None:
        self._trace, self._session, self._context = trace, session, context
        self._turn, self._most = trace.turns[-1], context.limits.parallel_calls
        self._calls = [replace(call, name=worlds.get(call.name, call.name)) for call in calls]
        self._written = len(calls)
        self._sent, results = sendable(calls, self._most)
        self._open = [at for at in self._sent if calls[at].name in worlds]
        """The world's calls that may still be made."""
        self._own = [at for at in self._sent if at not in self._open and calls[at].name in own]
        for at in self._sent:
            unknown = ToolResult.error(f"Unknown tool {self._calls[at].name!r}.", fault=CallFault.UNKNOWN_TOOL)
            results[at] = _NOT_MADE if at in self._open or at in self._own else unknown
        trace.add_calls(self._calls, results)
        self._count = 0
        """Calls that were made."""
        self._made: dict[int, _Made] = {}
        """Those that the policy wrote, by position."""
        self._asked_again = 0
        """How often each may be made once more."""
        self.is_settled = False
        """Whether the policy's next turn reads them."""

    async def make(self, name: str, arguments: dict[str, Any], position: int | None) -> tuple[Shown, bool]:
        """Send a call of the program's.

        Args:
            position: The written call that the program names by its id.

        Returns:
            What the program is given, and whether it is an error.

        Raises:
            GatewayError: the world broke.
        """
        at = self._position(self._open, name, arguments, position)
        if at is None:
            if (at := self._position(self._again, name, arguments, position)) is not None:
                made = self._made[at]
                made.repeated += 1
                await made.over.wait()
                return made.given
        if at is None and self._count >= self._most:
            return Shown(text=too_many(self._most).text), True
        self._count += 1
        made = _Made()
        if at is None:
            at = len(self._calls)
            self._calls.append(Call(name=name, arguments=arguments))
            self._trace.add_calls(self._calls[at:], [UNDER_WAY])
        else:
            self._open.remove(at)
            self._made[at] = made
        began_at, began, result = time.time(), time.perf_counter(), UNDER_WAY
        try:
            result = await self._session.call(name, arguments)
        finally:  # also where the world breaks or the trajectory ends: the call may have taken effect
            shown = show(result, tool=name, config=self._context.environment.results, tokens=self._context.tokens)
            if shown.images:  # a program passes on text
                shown = Shown(text=result.text)
            event = ToolEvent.of(self._calls[at], result, shown, self._server(name))
            event.began_at, event.wait_s = began_at, max(0.0, time.perf_counter() - began - event.elapsed_s)
            # The policy did not write these: a program in JavaScript, for one, rounds integers beyond 2^53.
            written = self._calls[at].arguments
            event.coerced |= {key: value for key, value in arguments.items() if value != written.get(key)}
            self._turn.tools[at] = event
            made.given = shown, result.is_error
            made.over.set()
        return made.given

    def awaits(self, name: str, arguments: Mapping[str, Any], position: int | None) -> bool:
        """Whether this call is one that the policy wrote and that may be made, perhaps once more."""
        return self._position([*self._open, *self._again], name, arguments, position) is not None

    @property
    def _again(self) -> list[int]:
        return [at for at, made in self._made.items() if made.repeated < self._asked_again]

    def asked_again(self) -> None:
        """The program has asked again for the answer that these calls are of, as after a stream that broke."""
        self._asked_again += 1

    def _position(
        self, among: Collection[int], name: str, arguments: Mapping[str, Any], named: int | None
    ) -> int | None:
        mine = [] if self.is_settled else [at for at in among if self._calls[at].name == name]
        if named is not None:
            return named if named in mine else None
        same = comparable(arguments)
        return next((at for at in mine if comparable(self._calls[at].arguments) == same), None)

    def _server(self, name: str) -> str | None:
        tool = self._session.tools.get(name)
        return tool.server if tool is not None else None

    def _message(self, at: int) -> Message:
        event = self._turn.tools[at]
        return tool_message(self._calls[at], event.text if event.shown is None else event.shown)

    def settle(self, shown: Mapping[int, str], *, reads: bool = True) -> list[Message]:
        """Record what the policy reads of each call, once, and return the tool messages of those that it wrote.

        What is not the world's result is marked: one of a call that the program did not make, or made and changed.

        Args:
            shown: What the program gives the policy, by position. Of other calls it reads the result as recorded.
            reads: Whether the policy reads it in place of the record.
        """
        for at, text in shown.items():
            call, event = self._calls[at], self._turn.tools[at]
            read = event.text if event.shown is None else event.shown
            if at in self._own and not self.is_settled:
                result = ToolResult(content=(Content(kind=ContentKind.TEXT, text=text),))
                self._turn.tools[at] = ToolEvent.of(call, result, Shown(text=text), None)
            elif text != read:
                if at in self._own or at in self._made or at in self._open:
                    kind = MarkKind.RESULT_INVENTED if at in self._open else MarkKind.RESULT_CHANGED
                    said = f"{call.name} gave {read[:_SHOWN]!r}, the policy read {text[:_SHOWN]!r}"
                    self._turn.marks.append(Mark(kind=kind, detail=said))
                if reads and not self.is_settled:
                    event.shown = text
        messages = self.messages(shown)
        if reads and not self.is_settled:
            self.is_settled = True
            written = self._calls[: self._written]
            faults = [ToolResult(fault=event.fault) for event in self._turn.tools[: self._written]]
            known = {*self._session.tools, *(self._calls[at].name for at in self._own)}
            self._turn.marks += refused(written, self._sent, known, faults)
        return messages

    def messages(self, shown: Mapping[int, str]) -> list[Message]:
        """The tool messages of the calls that the policy wrote, with what the program gives it now."""
        made = [self._message(at) for at in range(self._written)]
        return [message | ({"content": shown[at]} if at in shown else {}) for at, message in enumerate(made)]

    def end(self) -> list[Message]:
        """No call is made any more: the tool messages of all, first of those that the policy wrote."""
        self.settle({})
        if unasked := len(self._calls) - self._written:
            self._turn.marks.append(Mark(kind=MarkKind.UNASKED_CALL, detail=f"{unasked} calls"))
        return list(map(self._message, range(len(self._calls))))


def comparable(value: Any) -> str:
    """JSON that is equal for equal values, with numbers as doubles."""
    return canonical_json(_as_doubles(value))


def _as_doubles(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_doubles(each) for key, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_as_doubles(each) for each in cast("list[Any]", value)]
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return value
    return value
