"""What is wrong with a turn, and what the environment wants done about it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from gateway.types import canonical_json
from rollout.environment.config import FilterAction, FilterConfig, FiltersConfig
from rollout.trace.events import Mark, MarkKind
from rollout.trace.record import StopReason, Trace
from rollout.types import Call, Completion, FinishReason, Parsed

_CALL_MARKER = re.compile(r"<[^<>\s]*tool[_▁]calls?[^<>\s]*>|<function=")
"""How the known formats begin a call."""
_BROKEN_SHARE = 0.05
"""Share of characters that are no text, from which on a text is broken."""
_LOOP_REPEATS, _LOOP_TOKENS, _LONGEST_PERIOD = 4, 24, 64
"""A text ends in a loop where its last tokens are one period, said this often, and this long in all."""


class Filters:
    """The filters of one trajectory; they remember its calls."""

    def __init__(self, config: FiltersConfig) -> None:
        self._config = config
        self._made = Counter[str]()

    def judge(self, trace: Trace, completion: Completion, parsed: Parsed) -> None:
        """Mark the turn that was just added, and mask it or end the trajectory where a filter says so."""
        marks = [*noted(completion, parsed), *self._found(completion, parsed)]
        trace.turns[-1].marks += marks
        if any(mark.action is FilterAction.MASK for mark in marks):
            trace.mask(len(trace.turns) - 1)
        if any(mark.action is FilterAction.END for mark in marks):
            trace.stop_reason = StopReason.FILTERED

    def settle(self, trace: Trace) -> float:
        """What the whole trajectory gets: its tokens masked where a filter says so, and the penalty, returned."""
        found = [mark for turn in trace.turns for mark in turn.marks]
        if any(mark.action is FilterAction.MASK_TRAJECTORY for mark in found):
            for segment in (*trace.earlier, trace):
                segment.mask()
        return sum(self._of(mark.kind).penalty for mark in found if mark.action is FilterAction.PENALISE)

    def _found(self, completion: Completion, parsed: Parsed) -> list[Mark]:
        found: list[Mark] = []
        if completion.finish_reason is FinishReason.ABORT:
            return found
        if why := void(completion, parsed):
            found.append(self._mark(MarkKind.VOID, why))
        repeated = [call for call in readable(parsed) if self._times(call) >= self._config.repeated_calls.times]
        if repeated:
            found.append(self._mark(MarkKind.REPEATED_CALL, ", ".join(dict.fromkeys(call.name for call in repeated))))
        most = self._config.long_thinking.tokens
        if most is not None and parsed.thinking_tokens > most:
            found.append(self._mark(MarkKind.LONG_THINKING, f"{parsed.thinking_tokens} tokens"))
        return found

    def _times(self, call: Call) -> int:
        """How often the call was made, this time included."""
        key = canonical_json([call.name, call.arguments])
        self._made[key] += 1
        return self._made[key]

    def _mark(self, kind: MarkKind, detail: str) -> Mark:
        return Mark(kind=kind, detail=detail, action=self._of(kind).action)

    def _of(self, kind: MarkKind) -> FilterConfig:
        config = self._config
        return {
            MarkKind.VOID: config.void,
            MarkKind.REPEATED_CALL: config.repeated_calls,
            MarkKind.LONG_THINKING: config.long_thinking,
        }[kind]


def readable(parsed: Parsed) -> list[Call]:
    return [call for call in parsed.calls if call.problem is None]


def noted(completion: Completion, parsed: Parsed) -> list[Mark]:
    """What no filter decides about."""
    marks: list[Mark] = []
    if completion.forced is not None:
        marks.append(Mark(kind=MarkKind.THINKING_CLOSED))
    if _CALL_MARKER.search(parsed.thinking):
        marks.append(Mark(kind=MarkKind.CALL_IN_THINKING))
    broken = [call for call in parsed.calls if call.problem is not None]
    if broken and completion.finish_reason is FinishReason.LENGTH and parsed.calls[-1].problem is not None:
        marks.append(Mark(kind=MarkKind.CUT_CALL))
        broken = broken[:-1]
    if broken:
        marks.append(Mark(kind=MarkKind.MALFORMED_CALL, detail=f"{len(broken)} of {len(parsed.calls)}"))
    return marks


def refused(calls: Sequence[Call], sent: Sequence[int], tools: Collection[str]) -> list[Mark]:
    """What became of the calls that no tool has answered.

    Args:
        sent: indices of the calls that were handed to the session.
        tools: the names that the policy may call.
    """
    marks: list[Mark] = []
    if unknown := [calls[index].name for index in sent if calls[index].name not in tools]:
        marks.append(Mark(kind=MarkKind.UNKNOWN_TOOL, detail=", ".join(dict.fromkeys(unknown))))
    if beyond := sum(call.problem is None for call in calls) - len(sent):
        marks.append(Mark(kind=MarkKind.NOT_SENT, detail=f"{beyond} of {len(calls)} calls"))
    return marks


def void(completion: Completion, parsed: Parsed) -> str:
    """Why the turn is neither a readable call nor an answer; empty where it is one (SimpleTIR, arXiv 2509.02479)."""
    if readable(parsed):
        return ""
    if parsed.calls:
        return "broken call"
    if not parsed.content.strip():
        return "cut in mid-thought" if completion.finish_reason is FinishReason.LENGTH else "empty"
    if ends_in_loop(completion.ids):
        return "repeated text"
    if sum(map(_is_broken, parsed.content)) > _BROKEN_SHARE * len(parsed.content):
        return "broken text"
    return "cut" if completion.finish_reason is FinishReason.LENGTH else ""


def _is_broken(character: str) -> bool:
    return character == "\N{REPLACEMENT CHARACTER}" or (character < " " and character not in "\n\r\t")


def ends_in_loop(ids: Sequence[int]) -> bool:
    """Whether the last tokens, but for the one that ends the turn, are one period over and over."""
    return any(_loops(ids, period, end) for end in {len(ids), len(ids) - 1} for period in range(1, _LONGEST_PERIOD + 1))


def _loops(ids: Sequence[int], period: int, end: int) -> bool:
    wanted = max(_LOOP_REPEATS * period, _LOOP_TOKENS)
    if end < wanted:
        return False
    return all(ids[at] == ids[at - period] for at in range(end - 1, end - 1 - (wanted - period), -1))
