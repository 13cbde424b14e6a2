"""A trajectory's conversation, outcome and timeline for the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from mcp_rollout.gateway.server_events import ServerEvents
from mcp_rollout.rollout.trace.events import ToolEvent
from mcp_rollout.rollout.trace.record import Trace, Turn

Bar = dict[str, Any]
"""An interval of the timeline: `kind`, `turn`, `start` and `length` in seconds, `label`."""


def conversation(trace: Trace, *, unit: str = "tokens") -> dict[str, Any]:
    """All of a trajectory but its tokens, in values that JSON has.

    Args:
        unit: what its ids stand for.
    """
    reward = trace.reward
    return {
        "unit": unit,
        "agent": None if trace.agent is None else trace.agent.model_dump_json(by_alias=True),
        "answer": trace.task.answer,
        "tools": trace.task.tools,
        "opening": [_message(message) for message in trace.messages[: trace.opening]],
        "setup": [_call(event) for event in trace.setup],
        "turns": [_turn(turn, number, trace) for number, turn in enumerate(trace.turns)],
        "checks": [{**_call(each.call), "holds": each.holds} for each in trace.checks],
        "server_events": _server_events(trace.server_events),
        "reward": None if reward is None else asdict(reward),
        "failure": None if trace.failure is None else {"kind": trace.failure.kind, "message": trace.failure.message},
        "timeline": list(timeline(trace, unit)),
    }


def timeline(trace: Trace, unit: str) -> Iterator[Bar]:
    """What the trajectory spent its time on, from its beginning: waiting for a lease, generating, tools, the user."""
    if trace.lease_wait_s > 0:
        yield _bar("queue", -1, 0.0, trace.lease_wait_s, "waiting for servers")
    for number, turn in enumerate(trace.turns):
        began = turn.began_at - trace.began_at if turn.began_at else 0.0
        yield _bar("generation", number, began, turn.generate_s, f"turn {number + 1}: {turn.sampled} {unit}")
        end = began + turn.generate_s
        for event in turn.tools:
            if not event.began_at:
                continue
            start = event.began_at - trace.began_at
            # The record has no order of waiting and calling; most of the wait is before the request is sent.
            if event.wait_s > 0:
                yield _bar("queue", number, start, event.wait_s, f"{event.name}: waiting")
            yield _bar("tool", number, start + event.wait_s, event.elapsed_s, event.name)
            end = max(end, start + event.wait_s + event.elapsed_s)
        if turn.user is not None:
            yield _bar("user", number, end, turn.user.elapsed_s, "user")


def _bar(kind: str, turn: int, start: float, length: float, label: str) -> Bar:
    return {"kind": kind, "turn": turn, "start": max(0.0, start), "length": length, "label": label}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    content: Any = message.get("content")
    more = {key: value for key, value in message.items() if key not in ("role", "content")}
    text = content if isinstance(content, str) else "" if content is None else readable(content)
    return {"role": str(message.get("role", "")), "text": text, "more": readable(more) if more else ""}


def _turn(turn: Turn, number: int, trace: Trace) -> dict[str, Any]:
    reward = trace.reward
    return {
        "content": turn.content,
        "thinking": turn.thinking,
        "finish_reason": str(turn.finish_reason),
        "sampled": turn.sampled,
        "trimmed": len(turn.trimmed),
        "seconds": turn.generate_s,
        "weights": turn.weights_version[0],
        "calls": [_call(event) for event in turn.tools],
        "user": None
        if turn.user is None
        else {
            "text": turn.user.message,
            "done": turn.user.done,
            "reward": turn.user.reward,
            "seconds": turn.user.elapsed_s,
        },
        "agent": turn.agent_message,
        "marks": list(map(asdict, turn.marks)),
        "events": _server_events(turn.server_events),
        "reward": reward.turns[number] if reward is not None and number < len(reward.turns) else None,
    }


def _call(event: ToolEvent) -> dict[str, Any]:
    return {
        "name": event.name,
        "server": event.server,
        "arguments": readable(event.arguments),
        "coerced": readable(event.coerced) if event.coerced else "",
        "text": event.text,
        "shown": event.shown,
        "structured": None if event.structured is None else readable(event.structured),
        "blocks": [f"{block.kind} {block.mime_type or ''} {block.size} bytes" for block in event.blocks],
        "is_error": event.is_error,
        "fault": event.fault and str(event.fault),
        "reward": event.reward,
        "seconds": event.elapsed_s,
        "wait": event.wait_s,
        "resends": event.resends,
        "bytes": event.received_bytes,
        "cut_tokens": event.cut_tokens,
    }


def _server_events(events: ServerEvents) -> dict[str, Any]:
    return {
        "requests": [
            asdict(request)
            | {
                "asked": readable(request.asked),
                "answer": None if request.answer is None else readable(request.answer),
            }
            for request in events.requests
        ],
        "notifications": list(map(asdict, events.notifications)),
        "more": events.more_requests + events.more_notifications,
    }


def readable(value: Any) -> str:
    """A value as indented JSON text, with the numbers as they are: a browser would round large ones."""
    return json.dumps(value, ensure_ascii=False, indent=2)
