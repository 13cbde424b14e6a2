"""Filters: detect void turns, repeated calls, long thinking and trajectories that a limit cut, and apply the actions of
the environment."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from mcp_rollout.gateway.types import CallFault, ToolResult, canonical_json
from mcp_rollout.rollout.environment.sections import FilterAction, FilterConfig, FiltersConfig, Overlong, OverlongConfig
from mcp_rollout.rollout.trace.events import Mark, MarkKind
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.types import Call, Completion, FinishReason, Parsed

_CALL_MARKER = re.compile(r"<[^<>\s]*tool[_▁]calls?[^<>\s]*>|<function=")
"""The beginning of a call in the known formats."""
_BROKEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\N{REPLACEMENT CHARACTER}]")
_BROKEN_SHARE = 0.05
"""A text with a larger share of control and replacement characters is broken."""
_LOOP_REPEATS, _LOOP_TOKENS, _LONGEST_PERIOD = 4, 24, 64
"""A text ends in a loop if its last tokens repeat a period at least this often and this many tokens long in total;
longer periods are not detected."""

_OVERLONG = {Overlong.MASK: FilterAction.MASK_TRAJECTORY, Overlong.PENALISE: FilterAction.PENALISE}
"""What `filters.overlong` does, as the action of a filter."""
_OWN_PROCESS = {CallFault.TIMED_OUT: MarkKind.TIMED_OUT, CallFault.SERVER_GONE: MarkKind.SERVER_GONE}
"""Marks of what a policy did to its own process."""


class Filters:
    """The filters of one trajectory, with the calls it has made so far."""

    def __init__(self, config: FiltersConfig) -> None:
        self._times, self._most_thinking = config.repeated_calls.times, config.long_thinking.tokens
        self._filters: dict[MarkKind, FilterConfig] = {
            MarkKind.VOID: config.void,
            MarkKind.REPEATED_CALL: config.repeated_calls,
            MarkKind.LONG_THINKING: config.long_thinking,
        }
        self._overlong = config.overlong
        self._made = Counter[str]()

    def judge(self, trace: Trace, completion: Completion, parsed: Parsed) -> None:
        """Mark the last turn, and mask its tokens or end the trajectory where that is a matching filter's action."""
        marks = noted(completion, parsed)
        if completion.finish_reason is not FinishReason.ABORT:
            marks += [
                Mark(kind=kind, detail=detail, action=self._filters[kind].action)
                for kind, detail in self._matches(completion, parsed)
            ]
        trace.turns[-1].marks += marks
        if any(mark.action is FilterAction.MASK for mark in marks):
            trace.mask(len(trace.turns) - 1)
        if any(mark.action is FilterAction.END for mark in marks):
            trace.stop_reason = StopReason.FILTERED

    def settle(self, trace: Trace, room: float) -> float:
        """Mask the whole trajectory where a filter's action is that, and return the sum of the penalties.

        Args:
            room: the share of the token limit that the trajectory has left.
        """
        overlong = penalty_share(self._overlong, trace.stop_reason, room)
        action = _OVERLONG.get(self._overlong.action)
        if overlong and action is not None and trace.turns:
            cut = trace.stop_reason is not None and trace.stop_reason.is_limit
            detail = str(trace.stop_reason) if cut else f"{room:.0%} of the tokens left"
            trace.turns[-1].marks.append(Mark(kind=MarkKind.OVERLONG, detail=detail, action=action))
        found = [mark for turn in trace.turns for mark in turn.marks]
        if any(mark.action is FilterAction.MASK_TRAJECTORY for mark in found):
            for segment in (*trace.earlier, trace):
                segment.mask()
        penalties = {kind: each.penalty for kind, each in self._filters.items()}
        penalties[MarkKind.OVERLONG] = self._overlong.penalty * overlong
        return sum(penalties[mark.kind] for mark in found if mark.action is FilterAction.PENALISE)

    def _matches(self, completion: Completion, parsed: Parsed) -> Iterator[tuple[MarkKind, str]]:
        """The filters that match, each with the detail of its mark."""
        if reason := void(completion, parsed):
            yield MarkKind.VOID, reason
        calls = [call.name for call in readable(parsed) if self._count(call) >= self._times]
        if calls:
            yield MarkKind.REPEATED_CALL, ", ".join(dict.fromkeys(calls))
        if self._most_thinking is not None and parsed.thinking_tokens > self._most_thinking:
            yield MarkKind.LONG_THINKING, f"{parsed.thinking_tokens} tokens"

    def _count(self, call: Call) -> int:
        """How often the trajectory made this call, including this time."""
        # Canonical, so that another order of keys is the same call.
        key = canonical_json([call.name, call.arguments])
        self._made[key] += 1
        return self._made[key]


def penalty_share(config: OverlongConfig, stopped: StopReason | None, room: float) -> float:
    """How much of the penalty a trajectory gets: 1 where a limit cut it, and before that, within `last_share` of the
    token limit, 1 - room / last_share."""
    if stopped is not None and stopped.is_limit:
        return 1.0
    return 0.0 if config.last_share is None else max(0.0, 1.0 - max(room, 0.0) / config.last_share)


def readable(parsed: Parsed) -> list[Call]:
    """The calls that could be parsed."""
    return [call for call in parsed.calls if call.problem is None]


def noted(completion: Completion, parsed: Parsed) -> list[Mark]:
    """Marks that no filter is configured for."""
    marks: list[Mark] = []
    if completion.forced is not None:
        marks.append(Mark(kind=MarkKind.THINKING_CLOSED))
    if _CALL_MARKER.search(parsed.thinking):
        marks.append(Mark(kind=MarkKind.CALL_IN_THINKING))
    broken = [call for call in parsed.calls if call.problem is not None]
    if broken and completion.finish_reason is FinishReason.LENGTH and parsed.calls[-1].problem is not None:
        marks.append(Mark(kind=MarkKind.CUT_CALL))
        # The length limit cut this one; the policy did not write it wrong.
        broken = broken[:-1]
    if broken:
        marks.append(Mark(kind=MarkKind.MALFORMED_CALL, detail=f"{len(broken)} of {len(parsed.calls)}"))
    return marks


def refused(
    calls: Sequence[Call], sent: Sequence[int], tools: Collection[str], results: Sequence[ToolResult]
) -> list[Mark]:
    """Marks of the calls that no tool answered.

    Args:
        calls: all calls of the turn.
        sent: indices of the calls that were sent.
        tools: names of the tools that the policy may call.
        results: what the policy reads for each call.
    """
    marks: list[Mark] = []
    if unknown := [calls[index].name for index in sent if calls[index].name not in tools]:
        marks.append(Mark(kind=MarkKind.UNKNOWN_TOOL, detail=", ".join(dict.fromkeys(unknown))))
    if beyond := sum(call.problem is None for call in calls) - len(sent):
        marks.append(Mark(kind=MarkKind.NOT_SENT, detail=f"{beyond} of {len(calls)} calls"))
    for fault, kind in _OWN_PROCESS.items():
        if names := [call.name for call, result in zip(calls, results, strict=True) if result.fault is fault]:
            marks.append(Mark(kind=kind, detail=", ".join(dict.fromkeys(names))))
    return marks


def void(completion: Completion, parsed: Parsed) -> str:
    """Why the turn is neither a readable call nor an answer; empty if it is one (SimpleTIR, arXiv 2509.02479)."""
    if readable(parsed):
        return ""
    if parsed.calls:
        return "broken call"
    if not parsed.content.strip():
        return "cut in mid-thought" if completion.finish_reason is FinishReason.LENGTH else "empty"
    if ends_in_loop(completion.ids):
        return "repeated text"
    if len(_BROKEN.findall(parsed.content)) > _BROKEN_SHARE * len(parsed.content):
        return "broken text"
    return "cut" if completion.finish_reason is FinishReason.LENGTH else ""


def ends_in_loop(ids: Sequence[int]) -> bool:
    """Whether the last tokens, with or without the stop token, repeat one period."""
    return any(_loops(ids, len(ids) - cut) for cut in (0, 1))


def _loops(ids: Sequence[int], end: int) -> bool:
    if end < _LOOP_TOKENS:
        return False
    last, longest = ids[end - 1], min(_LONGEST_PERIOD, end // _LOOP_REPEATS)
    # Nearly every period fails at the last token already.
    periods = [period for period in range(1, longest + 1) if ids[end - 1 - period] == last]
    return any(_repeats(ids, period, end) for period in periods)


def _repeats(ids: Sequence[int], period: int, end: int) -> bool:
    wanted = max(_LOOP_REPEATS * period, _LOOP_TOKENS)
    return all(ids[at] == ids[at - period] for at in range(end - 1, end - 1 - (wanted - period), -1))
