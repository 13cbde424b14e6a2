"""Responses, `POST …/responses`: items instead of messages, and functions in namespaces."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, cast
from uuid import uuid4

from mcp_rollout.rollout.programs.conversation import Answer, Asked, Refusal, Unreadable
from mcp_rollout.rollout.programs.dialects.dialect import Dialect, Event, Json, asked, call, function, text_of

_SEPARATOR = "__"


class Responses(Dialect):
    def read(self, body: Json) -> Asked:
        given: Any = body["input"]
        items: list[Json] = [{"role": "user", "content": given}] if isinstance(given, str) else given
        messages: list[Json] = []
        if instructions := text_of(body.get("instructions")):
            messages.append({"role": "system", "content": instructions})
        for item in items:
            _add(messages, item)
        for message in messages:
            if message["role"] == "assistant":
                message["content"] = "".join(message["content"])
        keys = ("input", "instructions", "max_output_tokens", "text")
        return asked(body, messages, _tools(body), body.get("max_output_tokens"), *keys)

    def document(self, answer: Answer, body: Json) -> Json:
        return _response(body, "incomplete" if answer.is_cut else "completed", _items(answer, body), answer)

    def events(self, answer: Answer, body: Json) -> Iterator[Event]:
        for number, (name, data) in enumerate(_events(self.document(answer, body))):
            yield name, {"type": name, "sequence_number": number, **data}

    def waiting(self, body: Json) -> Event:
        name = "response.in_progress"
        return name, {"type": name, "sequence_number": 0, "response": _response(body, "in_progress", [], None)}

    def failed(self, refusal: Refusal, body: Json) -> Event:
        code = "context_length_exceeded" if refusal.is_length else "invalid_prompt"
        response = _response(body, "failed", [], None) | {"error": {"code": code, "message": refusal.problem}}
        return "response.failed", {"type": "response.failed", "sequence_number": 0, "response": response}


def _add(messages: list[Json], item: Json) -> None:
    """Add an item; those of one answer become one message, whose content is a list of texts."""
    kind = item.get("type", "message")
    if kind == "function_call_output":
        content: Any = item["output"]
        messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": text_of(content)})
    elif kind == "message" and item["role"] != "assistant":
        messages.append({"role": item["role"], "content": text_of(item.get("content"))})
    elif kind in ("message", "function_call"):
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": []})
        if kind == "message":
            messages[-1]["content"].append(text_of(item.get("content")))
        else:
            name = _SEPARATOR.join(filter(None, (item.get("namespace"), item["name"])))
            messages[-1].setdefault("tool_calls", []).append(call(item["call_id"], name, item["arguments"]))
    elif kind not in ("reasoning", "additional_tools"):
        raise Unreadable(f"items of type {kind} cannot be shown to this policy")


def _offered(body: Json) -> list[Json]:
    """The tools of a request: those of `tools`, and those that Codex gives as items before the conversation."""
    items: list[Json] = [] if isinstance(body["input"], str) else body["input"]
    more: list[Json] = [tool for item in items if item.get("type") == "additional_tools" for tool in item["tools"]]
    return [*cast("list[Json]", body.get("tools") or []), *more]


def _tools(body: Json) -> list[Json]:
    """The functions with flat names, without what else is offered, which a policy cannot call."""
    found: list[Json] = []
    for tool in _offered(body):
        kind = tool.get("type")
        space = f"{tool['name']}{_SEPARATOR}" if kind == "namespace" else ""
        functions = cast("list[Json]", tool["tools"] if space else [tool] if kind == "function" else [])
        found += [function(space + own["name"], own.get("description"), own.get("parameters")) for own in functions]
    return found


def _items(answer: Answer, body: Json) -> list[Json]:
    items: list[Json] = []
    status = "incomplete" if answer.is_cut else "completed"
    if answer.thinking:
        summary = [{"type": "summary_text", "text": answer.thinking}]
        items.append({"id": _id("rs"), "type": "reasoning", "summary": summary, "encrypted_content": "none"})
    if answer.text:
        content: list[Json] = [{"type": "output_text", "text": answer.text, "annotations": []}]
        items.append({"id": _id("msg"), "type": "message", "status": status, "role": "assistant", "content": content})
    spaces = [str(tool["name"]) for tool in _offered(body) if tool.get("type") == "namespace"]
    for each in answer.calls:
        space = next((one for one in spaces if each.name.startswith(one + _SEPARATOR)), None)
        name: Json = {"name": each.name}
        if space is not None:
            name = {"namespace": space, "name": each.name.removeprefix(space + _SEPARATOR)}
        own: Json = {"id": _id("fc"), "type": "function_call", "status": status, "call_id": each.id}
        items.append({**own, **name, "arguments": each.arguments})
    return items


def _response(body: Json, status: str, items: list[Json], answer: Answer | None) -> Json:
    read, sampled = (answer.prompt_tokens, answer.sampled_tokens) if answer is not None else (0, 0)
    usage: Json = {"input_tokens": read, "output_tokens": sampled, "total_tokens": read + sampled}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        **{"id": _id("resp"), "object": "response", "created_at": int(time.time()), "model": body.get("model", "")},
        **{"status": status, "output": items, "usage": usage if answer is not None else None},
        **{"parallel_tool_calls": body.get("parallel_tool_calls") is not False, "tools": body.get("tools") or []},
        **{"tool_choice": body.get("tool_choice") or "auto", "error": None, "instructions": None, "metadata": {}},
        **{"incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None},
        **{"temperature": 1.0, "top_p": 1.0},
    }


def _events(response: Json) -> Iterator[Event]:
    yield "response.created", {"response": {**response, "status": "in_progress", "output": [], "usage": None}}
    for at, item in enumerate(response["output"]):
        where: Json = {"output_index": at, "item_id": item["id"]}
        yield "response.output_item.added", {"output_index": at, "item": {**item, **_EMPTY[item["type"]]}}
        if item["type"] == "message":
            part, text = {**where, "content_index": 0}, item["content"][0]["text"]
            yield "response.content_part.added", {**part, "part": {**item["content"][0], "text": ""}}
            yield "response.output_text.delta", {**part, "delta": text, "logprobs": []}
            yield "response.output_text.done", {**part, "text": text, "logprobs": []}
            yield "response.content_part.done", {**part, "part": item["content"][0]}
        elif item["type"] == "reasoning":
            part, summary = {**where, "summary_index": 0}, item["summary"][0]
            yield "response.reasoning_summary_part.added", {**part, "part": {**summary, "text": ""}}
            yield "response.reasoning_summary_text.delta", {**part, "delta": summary["text"]}
            yield "response.reasoning_summary_text.done", {**part, "text": summary["text"]}
            yield "response.reasoning_summary_part.done", {**part, "part": summary}
        else:
            yield "response.function_call_arguments.delta", {**where, "delta": item["arguments"]}
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield "response.function_call_arguments.done", {**where, **done}
        yield "response.output_item.done", {"output_index": at, "item": item}
    yield f"response.{response['status']}", {"response": response}


_EMPTY: dict[str, Json] = {
    "message": {"status": "in_progress", "content": []},
    "reasoning": {"summary": []},
    "function_call": {"status": "in_progress", "arguments": ""},
}
"""What an item lacks when it is announced."""


def _id(kind: str) -> str:
    return f"{kind}_{uuid4().hex}"
