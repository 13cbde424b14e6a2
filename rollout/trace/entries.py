"""Entries of the index: what is found and sorted by, for each trajectory."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.segment import SpanKind, recorded_lengths

VERSION = 7
"""Of entries, in the index and in archives; others are made again from the records."""
Entry = dict[str, Any]
"""A value for each of `COLUMNS`. Objects and lists are JSON texts."""

SELECTABLE = {
    # Identity.
    "id": "string",
    "environment": "string",
    "task": "string",
    "seed": "int64",
    "row": "int64",
    "sample": "int64",
    "step": "int64",  # null outside training
    "split": "string",
    "validate": "bool_",
    "attempt": "int32",
    "parent": "string",
    "branched_at": "int64",
    "uid": "string",
    "engine": "string",
    "run": "string",  # names the run record beside the file
    # Outcome.
    "reward": "float64",
    "penalty": "float64",
    "stop_reason": "string",
    "failure": "string",  # its code
    "error": "string",  # its message
    "withdrawn": "bool_",
    # Counts, and times: seconds, `began_at` since 1970.
    "turns": "int32",
    "tool_calls": "int32",
    "tool_errors": "int32",
    "prompt_tokens": "int64",  # of the opening prompt
    "response_tokens": "int64",  # after it, in the longest context
    "tokens": "int64",  # of all segments: prompt and response
    "sampled_tokens": "int64",  # for this trajectory: without those that a branch took over from its parent
    "loss_tokens": "int64",
    "control_text": "int32",  # spellings of control tokens in texts
    "began_at": "float64",
    "elapsed_s": "float64",
    "lease_wait_s": "float64",
}
"""Columns with one value for each trajectory, and their Arrow types."""
_ORIGIN = ("row", "sample", "split", "attempt", "parent", "branched_at", "uid", "engine")
"""Columns that are fields of the origin as they are."""
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
"""Columns of the index."""
JSON_COLUMNS = ("completions", "reward_parts", "marks", "calls", "errors", "call_s")
"""Columns with JSON texts, which `rollout.trace.reader` parses."""
TEXT_LENGTH = 200
_ERROR_LENGTH = 200
"""Characters of an error and of a note."""


def entry_of(trace: Trace) -> Entry:
    """The entry of a trace."""
    selected, strategy = selectable(trace), trace.strategy
    events = [event for turn in trace.turns for event in turn.tools]
    thoughts = (
        span.end - span.start
        for segment in (*trace.earlier, trace)
        for span in segment.spans
        if span.kind is SpanKind.THINKING
    )
    seconds: Counter[str] = Counter()
    for event in events:
        seconds[event.name] += event.elapsed_s  # pyright: ignore[reportArgumentType]  # a sum of seconds
    said = (message.get("content") for message in trace.messages if message.get("role") == "user")
    error: str | None = selected["error"]
    return selected | {
        "seed": selected["seed"] if abs(selected["seed"]) < 2**63 else str(selected["seed"]),
        "stop_reason": str(selected["stop_reason"]),
        "error": error and error[:_ERROR_LENGTH],
        "strategy": str(strategy.use),
        "shared_turns": strategy.shared_turns,
        "restored": strategy.restored,
        "note": (strategy.note or strategy.diverged)[:_ERROR_LENGTH],
        "user_turns": trace.user_turns,
        "generate_s": sum(turn.generate_s for turn in trace.turns),
        "completions": json.dumps([turn.sampled for turn in trace.turns[strategy.shared_turns :]]),
        "thinking_tokens": sum(thoughts),
        "reward_parts": _json(trace.reward.parts if trace.reward else {}),
        "marks": _json(Counter(kind for turn in trace.turns for kind in {str(mark.kind) for mark in turn.marks})),
        "calls": _json(Counter(event.name for event in events)),
        "errors": _json(Counter(event.name for event in events if event.is_error)),
        "call_s": _json(seconds),
        "text": " ".join(next((text for text in said if isinstance(text, str)), "").split())[:TEXT_LENGTH],
    }


def selectable(trace: Trace) -> Entry:
    """The values of the columns `SELECTABLE`."""
    task, origin, segments = trace.task, trace.origin, (*trace.earlier, trace)
    lengths = recorded_lengths(trace.segments or [trace], len(trace.turns))
    return {
        "id": trace.id,
        "environment": task.environment,
        "task": task.task,
        "seed": task.seed,
        **{name: getattr(origin, name) for name in _ORIGIN},
        "step": origin.step if origin.step >= 0 else None,
        "validate": origin.validate_,
        "run": trace.run,
        "reward": trace.reward.score if trace.reward else None,
        "penalty": trace.reward.penalty if trace.reward else None,
        "stop_reason": trace.stop_reason,
        "failure": trace.failure.kind if trace.failure else None,
        "error": trace.failure.message if trace.failure else None,
        "withdrawn": trace.is_withdrawn,
        "turns": len(trace.turns),
        "tool_calls": trace.tool_calls,
        "tool_errors": trace.tool_errors,
        "prompt_tokens": lengths.prompt,
        "response_tokens": lengths.response,
        "tokens": sum(len(segment.prompt_ids) + len(segment.response_ids) for segment in segments),
        "sampled_tokens": trace.sampled_anew,
        "loss_tokens": sum(sum(segment.loss_mask) for segment in segments),
        "control_text": trace.control_text,
        "began_at": trace.began_at,
        "elapsed_s": trace.elapsed_s,
        "lease_wait_s": trace.lease_wait_s,
    }


def _json(values: dict[str, Any]) -> str:
    return json.dumps(dict(values), ensure_ascii=False, sort_keys=True)
