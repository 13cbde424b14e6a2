"""A trace as a row of the archive, and back. Each text is stored once: turns refer to the message that has it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, TypeGuard, cast

from rollout.trace.columns import ORIGIN, as_they_are
from rollout.trace.events import ToolEvent, UserEvent, call_message, tool_message
from rollout.trace.outcome import StrategyRecord
from rollout.trace.record import Trace, Turn
from rollout.trace.segment import Segment, recorded_lengths
from rollout.types import Call

Row = dict[str, Any]


def row_of(trace: Trace) -> Row:
    """The values of a trace by column of `rollout.trace.columns`."""
    events = [(turn, event) for turn, each in enumerate(trace.turns) for event in each.tools]
    places = _Places.of(trace)
    prompt = list(trace.task.prompt)
    is_begun_by_prompt = trace.messages[: len(prompt)] == prompt
    outside = [(-1, trace.server_events)]
    received = [*outside, *((number, turn.server_events) for number, turn in enumerate(trace.turns))]
    return selectable(trace) | {
        "reward_parts": [{"name": name, "value": value} for name, value in trace.reward.parts.items()]
        if trace.reward
        else None,
        "reward_turns": trace.reward.turns if trace.reward else None,
        "tools": trace.task.tools,
        "later_tools": trace.task.later_tools,
        "answer": trace.task.answer,
        "world_calls": _world_calls(trace),
        "strategy": None if trace.strategy == StrategyRecord() else _json(asdict(trace.strategy)),
        "agent": None if trace.agent is None else trace.agent.model_dump_json(by_alias=True),
        "prompt_messages": len(prompt) if is_begun_by_prompt else None,
        "prompt": None if is_begun_by_prompt else _json(prompt),
        "messages": [places.message(number, trace) for number in range(len(trace.messages))],
        "generations": [places.generation(number, trace) for number in range(len(trace.turns))],
        "calls": [places.call(number, turn, event, trace) for number, (turn, event) in enumerate(events)],
        "user_replies": [places.user_reply(number, trace) for number, turn in enumerate(trace.turns) if turn.user],
        "marks": [{"turn": number, **asdict(mark)} for number, turn in enumerate(trace.turns) for mark in turn.marks],
        "server_requests": [_request(number, asked) for number, each in received for asked in each.requests],
        "notifications": [{"turn": number, **asdict(note)} for number, each in received for note in each.notifications],
        "more_requests": trace.server_events.more_requests,
        "more_notifications": trace.server_events.more_notifications,
        "has_logprobs": trace.has_logprobs,
        "segments": [_segment(segment) for segment in (*trace.earlier, trace)],
    }


def selectable(trace: Trace) -> Row:
    """The values of the columns without lists, which the index has as well."""
    task, origin, segments = trace.task, trace.origin, (*trace.earlier, trace)
    lengths = recorded_lengths(trace.segments or [trace], len(trace.turns))
    return {
        "id": trace.id,
        "environment": task.environment,
        "task": task.task,
        "seed": task.seed,
        **{name: getattr(origin, name) for name in ORIGIN},
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


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the messages of a trace's turns are: indexes into `messages`; None if there is none."""

    assistants: list[int | None]  # [turns]
    first_calls: list[int]
    """The index of each turn's first call among all calls."""  # [turns]
    tools: dict[int, int]
    """Call, by the index of its message."""
    shown: dict[int, int]
    """Message, by the index of its call."""
    users: dict[int, int]
    """Message, by turn."""

    @classmethod
    def of(cls, trace: Trace) -> _Places:
        # Each turn appended one assistant message; a prompt may have some before. A trajectory that was cut off in a
        # turn has fewer tool messages than calls.
        written = [index for index, message in enumerate(trace.messages) if message.get("role") == "assistant"]
        count = len(trace.turns)
        # From the end, since the messages of the prompt come first.
        assistants: list[int | None] = [*([None] * (count - len(written))), *(written[-count:] if count else [])]
        first_calls = [0, *accumulate(len(turn.tools) for turn in trace.turns)][:-1]
        shown: dict[int, int] = {}
        users: dict[int, int] = {}
        for number, turn in enumerate(trace.turns):
            index = assistants[number]
            after = [] if index is None else trace.messages[index + 1 : index + 1 + max(1, len(turn.tools))]
            for position, (event, message) in enumerate(zip(turn.tools, after, strict=False)):
                content: Any = message.get("content")
                if _is_content(content) and message == tool_message(_call(event), content):
                    shown[first_calls[number] + position] = (index or 0) + 1 + position
            said = turn.user.message if turn.user else None
            if index is not None and after and after[0] == {"role": "user", "content": said}:
                users[number] = index + 1
        return cls(assistants, first_calls, {message: call for call, message in shown.items()}, shown, users)

    def message(self, index: int, trace: Trace) -> Row:
        message = trace.messages[index]
        more = {key: value for key, value in message.items() if key not in ("role", "content")}
        row: Row = {"role": message.get("role"), "call": self.tools.get(index)}
        if row["call"] is not None:
            more = {}
        elif index in self.assistants:
            turn = self.assistants.index(index)
            if more == call_message(map(_call, trace.turns[turn].tools)):
                row["turn"], more = turn, {}
        content: Any = message.get("content")
        if isinstance(content, str):
            row["content"] = content
        elif isinstance(content, list):
            blocks, row["content"] = _text_apart(cast("list[Any]", content))
            row["blocks"] = _json(blocks)
        else:
            more |= {key: message[key] for key in ("content",) if key in message}
        return row | {"more": _json(more) if more else None}

    def generation(self, number: int, trace: Trace) -> Row:
        turn, index = trace.turns[number], self.assistants[number]
        is_in_message = index is not None and trace.messages[index].get("content") == turn.content
        return _as_they_are("generations", turn) | {
            "turn": number,
            "message": index if is_in_message else None,
            "content": None if is_in_message else turn.content,
            "weights_first": turn.weights_version[0],
            "weights_last": turn.weights_version[1],
            "attempts": [asdict(attempt) for attempt in turn.attempts],
            "more_requests": turn.server_events.more_requests,
            "more_notifications": turn.server_events.more_notifications,
        }

    def call(self, number: int, turn: int, event: ToolEvent, trace: Trace) -> Row:
        index = self.shown.get(number)
        read = None if index is None else _text(trace.messages[index]["content"])
        is_cut = event.shown is not None
        return _as_they_are("calls", event) | {
            "turn": turn,
            "arguments": _json(event.arguments),
            "message": index,
            "text": None if not is_cut and read == event.text else event.text,
            "shown": None if not is_cut or read == event.shown else event.shown,
            "is_cut": is_cut,
            "coerced": _json(event.coerced) if event.coerced else None,
            "structured": None if event.structured is None else _json(event.structured),
            "state": event.state,
            "blocks": [asdict(block) for block in event.blocks],
        }

    def user_reply(self, number: int, trace: Trace) -> Row:
        event, index = trace.turns[number].user, self.users.get(number)
        assert event is not None
        return _as_they_are("user_replies", event) | {
            "turn": number,
            "message": index,
            "text": event.message if index is None else None,
        }


def _as_they_are(column: str, record: Turn | ToolEvent | UserEvent) -> Row:
    return {name: getattr(record, name) for name in as_they_are(column, type(record))}


def _segment(segment: Segment) -> Row:
    sampled = [span for span in segment.spans if span.kind.is_sampled]
    # Only those: the others are 0.0, and most tokens of a long context are not sampled.
    logprobs = [value for span in sampled for value in segment.logprobs[span.start : span.end]]
    return {
        "prompt_ids": segment.prompt_ids,
        "response_ids": segment.response_ids,
        "loss_mask": segment.loss_mask,
        "logprobs": logprobs,
        "images": segment.images,
        "spans": [asdict(span) for span in segment.spans],
    }


def _world_calls(trace: Trace) -> str | None:
    of_task = trace.task.model_dump(mode="json", include={"setup", "check", "verl"}, exclude_defaults=True)
    made = {"made": list(map(asdict, trace.setup)), "checks": list(map(asdict, trace.checks))}
    found = of_task | {name: events for name, events in made.items() if events}
    return _json(found) if found else None


def _call(event: ToolEvent) -> Call:
    return Call(name=event.name, arguments=event.arguments, id=event.id)


def _request(turn: int, asked: Any) -> Row:
    answer = None if asked.answer is None else _json(asked.answer)
    return {"turn": turn, **asdict(asked), "asked": _json(asked.asked), "answer": answer}


def _is_content(value: Any) -> TypeGuard[str | list[dict[str, Any]]]:
    return isinstance(value, str | list)


def _text_apart(blocks: list[Any]) -> tuple[list[Any], str | None]:
    """The blocks of a message without a final text block, and its text."""
    last: Any = blocks[-1] if blocks else None
    if isinstance(last, dict):
        block = cast("dict[str, Any]", last)
        if block.keys() == {"type", "text"} and block["type"] == "text":
            return blocks[:-1], block["text"]
    return blocks, None


def _text(content: str | list[Any]) -> str:
    return content if isinstance(content, str) else _text_apart(content)[1] or ""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
