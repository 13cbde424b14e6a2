"""Chat completions, `POST …/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import cast
from uuid import uuid4

from mcp_rollout.rollout.programs.conversation import Answer, Asked, Unreadable
from mcp_rollout.rollout.programs.dialects.dialect import Dialect, Event, Json, asked, call, function, text_of


class Chat(Dialect):
    done = b"data: [DONE]\n\n"

    def read(self, body: Json) -> Asked:
        messages = [_message(each) for each in cast("list[Json]", body["messages"])]
        tools = [_tool(each) for each in cast("list[Json]", body.get("tools") or [])]
        keys = ("messages", "max_tokens", "max_completion_tokens", "response_format")
        most = body.get("max_completion_tokens")
        return asked(body, messages, tools, body.get("max_tokens") if most is None else most, *keys)

    def document(self, answer: Answer, body: Json) -> Json:
        choice = {"index": 0, "message": _said(answer), "finish_reason": _reason(answer), "logprobs": None}
        return {**_head(body, "chat.completion"), "choices": [choice], "usage": _usage(answer)}

    def events(self, answer: Answer, body: Json) -> Iterator[Event]:
        delta = _said(answer) | {"content": answer.text}
        for at, each in enumerate(delta.get("tool_calls", ())):
            each["index"] = at
        yield "", _chunk(body, delta)
        yield "", _chunk(body, {}, _reason(answer))
        if cast("Json", body.get("stream_options") or {}).get("include_usage"):
            yield "", {**_head(body, "chat.completion.chunk"), "choices": [], "usage": _usage(answer)}

    def waiting(self, body: Json) -> Event:
        # With a choice: an ordinary loop reads that of each chunk.
        return "", _chunk(body, {})


def _message(given: Json) -> Json:
    message: Json = {"role": given["role"], "content": text_of(given.get("content"))}
    if calls := cast("list[Json]", given.get("tool_calls") or []):
        message["tool_calls"] = [
            call(each["id"], each["function"]["name"], each["function"]["arguments"]) for each in calls
        ]
    if given["role"] == "tool":
        message["tool_call_id"] = given["tool_call_id"]
    return message


def _tool(given: Json) -> Json:
    if given.get("type") != "function":
        raise Unreadable(f"tools of type {given.get('type')} are not known here: offer functions")
    own = given["function"]
    return function(own["name"], own.get("description"), own.get("parameters"))


def _said(answer: Answer) -> Json:
    message: Json = {"role": "assistant", "content": answer.text or None}
    if answer.thinking:
        message["reasoning_content"] = answer.thinking
    if answer.calls:
        message["tool_calls"] = [call(each.id, each.name, each.arguments) for each in answer.calls]
    return message


def _reason(answer: Answer) -> str:
    return "length" if answer.is_cut else "tool_calls" if answer.calls else "stop"


def _chunk(body: Json, delta: Json, reason: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
    return {**_head(body, "chat.completion.chunk"), "choices": [choice]}


def _head(body: Json, kind: str) -> Json:
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": body.get("model", ""),
    }


def _usage(answer: Answer) -> Json:
    read, sampled = answer.prompt_tokens, answer.sampled_tokens
    return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}
