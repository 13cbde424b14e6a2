"""Messages, `POST …/messages`: blocks instead of messages, with results in a user's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast
from uuid import uuid4

from mcp_rollout.rollout.programs.conversation import Answer, Asked, Refusal
from mcp_rollout.rollout.programs.dialects.dialect import Dialect, Event, Json, asked, call, function, text_of
from mcp_rollout.rollout.programs.history import arguments_of


class Messages(Dialect):
    def read(self, body: Json) -> Asked:
        messages: list[Json] = []
        if system := text_of(body.get("system")):
            messages.append({"role": "system", "content": system})
        for message in cast("list[Json]", body["messages"]):
            messages += _split(message)
        tools = [
            function(tool["name"], tool.get("description"), tool["input_schema"])
            for tool in cast("list[Json]", body.get("tools") or [])
            if "input_schema" in tool  # the vendor's own have none, and a policy cannot call them
        ]
        keys = ("messages", "system", "max_tokens", "output_config")
        return asked(body, messages, tools, body.get("max_tokens"), *keys)

    def document(self, answer: Answer, body: Json) -> Json:
        blocks: list[Json] = []
        # Without the request's own `thinking` a client takes the block for an error.
        if answer.thinking and cast("Json", body.get("thinking") or {}).get("type") in ("enabled", "adaptive"):
            blocks.append({"type": "thinking", "thinking": answer.thinking, "signature": "none"})
        if answer.text:
            blocks.append({"type": "text", "text": answer.text})
        blocks += [
            {"type": "tool_use", "id": each.id, "name": each.name, "input": arguments_of(each.arguments, "__unparsed")}
            for each in answer.calls
        ]
        usage: Json = {"input_tokens": answer.prompt_tokens, "output_tokens": answer.sampled_tokens}
        usage |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        reason = "max_tokens" if answer.is_cut else "tool_use" if answer.calls else "end_turn"
        head: Json = {
            "id": f"msg_{uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": body.get("model", ""),
        }
        return {**head, "content": blocks, "stop_reason": reason, "stop_sequence": None, "usage": usage}

    def events(self, answer: Answer, body: Json) -> Iterator[Event]:
        whole = self.document(answer, body)
        written = {each.id: each.arguments for each in answer.calls}
        yield _event("message_start", message={**whole, "content": [], "stop_reason": None})
        for at, block in enumerate(whole["content"]):
            match block["type"]:
                case "thinking":
                    empty = {**block, "thinking": "", "signature": ""}
                    deltas = [
                        {"type": "thinking_delta", "thinking": block["thinking"]},
                        {"type": "signature_delta", "signature": block["signature"]},
                    ]
                case "text":
                    empty, deltas = {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
                case _:
                    empty: Json = {**block, "input": {}}
                    deltas = [{"type": "input_json_delta", "partial_json": written[block["id"]]}]
            yield _event("content_block_start", index=at, content_block=empty)
            for delta in deltas:
                yield _event("content_block_delta", index=at, delta=delta)
            yield _event("content_block_stop", index=at)
        delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage=whole["usage"])
        yield _event("message_stop")

    def waiting(self, body: Json) -> Event:
        return _event("ping")

    def error(self, refusal: Refusal) -> Json:
        # By this beginning, clients know that the conversation has become too long.
        problem = f"prompt is too long: {refusal.problem}" if refusal.is_length else refusal.problem
        return {"type": "error", "error": {"type": "invalid_request_error", "message": problem}}

    def failed(self, refusal: Refusal, body: Json) -> Event:
        return "error", self.error(refusal)


def _split(message: Json) -> list[Json]:
    """The messages of one that may have calls, results and text."""
    given: Any = message["content"]
    blocks: list[Json] = [{"type": "text", "text": given}] if isinstance(given, str) else given
    said = text_of([block for block in blocks if block["type"] not in _OTHER])
    if message["role"] == "assistant":
        calls = [call(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
        return [{"role": "assistant", "content": said} | ({"tool_calls": calls} if calls else {})]
    results = [
        {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text_of(block.get("content"))}
        for block in blocks
        if block["type"] == "tool_result"
    ]
    return [*results, *([{"role": message["role"], "content": said}] if said or not results else [])]


_OTHER = ("tool_use", "tool_result", "thinking", "redacted_thinking")


def _event(name: str, **data: Any) -> Event:
    return name, {"type": name, **data}
