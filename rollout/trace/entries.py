"""Entries of the index: what is found and sorted by, for each trajectory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from rollout.trace.archive_rows import selectable
from rollout.trace.columns import SELECTABLE
from rollout.trace.outcome import StrategyRecord
from rollout.trace.record import Trace
from rollout.trace.segment import SpanKind

Entry = dict[str, Any]
"""A value for each of `COLUMNS`. Objects and lists are JSON texts."""

COLUMNS = {
    **dict.fromkeys(SELECTABLE, ""),
    "strategy": "how the trajectory was rolled out",
    "shared_turns": "turns that a branch took over from its parent",
    "restored": "whether a branch's world was restored from a snapshot",
    "note": "why a leaf that was to branch is a chain",
    "user_turns": "messages of the user simulator",
    "generate_s": "seconds of all generations",
    "completions": "sampled tokens of each turn that a branch did not take over, a list",
    "thinking_tokens": "sampled tokens of all thoughts",
    "reward_parts": "reward by part, an object",
    "marks": "marked turns by kind, an object",
    "calls": "calls by tool, an object",
    "errors": "calls with an error by tool, an object",
    "call_s": "seconds by tool, an object",
    "text": "the first 200 characters of the first user message",
}
"""Columns of the index, those of the archive first."""
JSON_COLUMNS = ("completions", "reward_parts", "marks", "calls", "errors", "call_s")
"""Columns with JSON texts, which `rollout.trace.reader` parses."""
TEXT_LENGTH = 200
_ERROR_LENGTH = 200
"""Characters of an error and of a note."""
ARCHIVED = [
    *SELECTABLE,
    "strategy",
    "reward_parts",
    *(f"marks.list.element.{name}" for name in ("turn", "kind")),
    *(f"calls.list.element.{name}" for name in ("name", "is_error", "elapsed_s")),
    *(f"generations.list.element.{name}" for name in ("sampled", "generate_s")),
    "user_replies.list.element.turn",
    *(f"messages.list.element.{name}" for name in ("role", "content")),
    *(f"segments.list.element.spans.list.element.{name}" for name in ("kind", "start", "end")),
]
"""Columns of an archive that entries are made of: neither ids nor results."""


def entry_of(trace: Trace) -> Entry:
    """The entry of a trace."""
    events = [event for turn in trace.turns for event in turn.tools]
    return _entry(
        selectable(trace),
        strategy=trace.strategy,
        completions=[turn.sampled for turn in trace.turns[trace.strategy.shared_turns :]],
        thoughts=(
            span.end - span.start
            for segment in (*trace.earlier, trace)
            for span in segment.spans
            if span.kind is SpanKind.THINKING
        ),
        generate_s=sum(turn.generate_s for turn in trace.turns),
        user_turns=trace.user_turns,
        parts=trace.reward.parts if trace.reward else {},
        marks=((number, str(mark.kind)) for number, turn in enumerate(trace.turns) for mark in turn.marks),
        calls=[(event.name, event.is_error, event.elapsed_s) for event in events],
        messages=((message.get("role"), message.get("content")) for message in trace.messages),
    )


def entry_of_row(row: dict[str, Any]) -> Entry:
    """The entry of an archive's row, of which the columns `ARCHIVED` are enough."""
    # Null for a chain.
    strategy = StrategyRecord(**json.loads(row["strategy"] or "{}"))
    return _entry(
        {name: row[name] for name in SELECTABLE},
        strategy=strategy,
        completions=[generation["sampled"] for generation in row["generations"][strategy.shared_turns :]],
        thoughts=(
            span["end"] - span["start"]
            for segment in row["segments"]
            for span in segment["spans"]
            if span["kind"] == SpanKind.THINKING
        ),
        generate_s=sum(generation["generate_s"] for generation in row["generations"]),
        user_turns=len(row["user_replies"]),
        parts={part["name"]: part["value"] for part in row["reward_parts"] or ()},
        marks=((mark["turn"], mark["kind"]) for mark in row["marks"]),
        calls=[(call["name"], call["is_error"], call["elapsed_s"]) for call in row["calls"]],
        messages=((message["role"], message["content"]) for message in row["messages"]),
    )


def _entry(
    selected: dict[str, Any],
    *,
    strategy: StrategyRecord,
    completions: list[int],
    thoughts: Iterable[int],
    generate_s: float,
    user_turns: int,
    parts: dict[str, float],
    marks: Iterable[tuple[int, str]],
    calls: list[tuple[str, bool, float]],
    messages: Iterable[tuple[Any, Any]],
) -> Entry:
    seconds: Counter[str] = Counter()
    for name, _, elapsed_s in calls:
        seconds[name] += elapsed_s  # pyright: ignore[reportArgumentType]  # a sum of seconds
    said = next((content for role, content in messages if role == "user" and isinstance(content, str)), "")
    error: str | None = selected["error"]
    return selected | {
        "seed": selected["seed"] if abs(selected["seed"]) < 2**63 else str(selected["seed"]),
        "stop_reason": str(selected["stop_reason"]),
        "error": error and error[:_ERROR_LENGTH],
        "strategy": str(strategy.use),
        "shared_turns": strategy.shared_turns,
        "restored": strategy.restored,
        "note": (strategy.note or strategy.diverged)[:_ERROR_LENGTH],
        "user_turns": user_turns,
        "generate_s": generate_s,
        "completions": json.dumps(completions),
        "thinking_tokens": sum(thoughts),
        "reward_parts": _json(parts),
        "marks": _json(Counter(kind for _, kind in set(marks))),
        "calls": _json(Counter(name for name, _, _ in calls)),
        "errors": _json(Counter(name for name, is_error, _ in calls if is_error)),
        "call_s": _json(seconds),
        "text": " ".join(said.split())[:TEXT_LENGTH],
    }


def _json(values: dict[str, Any]) -> str:
    return json.dumps(dict(values), ensure_ascii=False, sort_keys=True)
