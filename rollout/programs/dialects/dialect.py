"""The `Dialect` protocol, and what the dialects share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

from rollout.programs.conversation import Answer, Asked, Refusal, Unreadable

Json = dict[str, Any]
Event = tuple[str, Json]
"""Its name, empty for none, and its data."""

_UNUSED = ("temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty", "tool_choice")
"""Parameters without effect: how a policy is sampled is the trainer's."""
_REFUSED = {
    "stop": "stop sequences",
    "stop_sequences": "stop sequences",
    "logit_bias": "logit_bias",
    "prefill": "prefilled answers",
    "audio": "audio",
    "previous_response_id": "conversations that are kept by the endpoint (send the whole input; store: false)",
}


class Dialect(Protocol):
    """One API of model endpoints."""

    def read(self, body: Json) -> Asked:
        """The request of a body. Raises Unreadable; KeyError, TypeError, AttributeError where it is malformed."""
        ...

    def document(self, answer: Answer, body: Json) -> Json:
        """The answer in one piece."""
        ...

    def events(self, answer: Answer, body: Json) -> Iterator[Event]:
        """The answer as a stream."""
        ...

    def waiting(self, body: Json) -> Event:
        """An event that keeps a program waiting."""
        ...

    def error(self, refusal: Refusal) -> Json:
        """A refusal as the body of a 400."""
        ...

    def failed(self, refusal: Refusal, body: Json) -> Event:
        """A refusal in a stream that has begun."""
        ...

    @property
    def done(self) -> bytes:
        """What ends a stream, after the events."""
        ...


def text_of(content: Any) -> str:
    """The text of a message's content. Raises Unreadable for images and the like."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for part in cast("list[Json]", content):
        kind = part.get("type", "text")
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise Unreadable(f"content of type {kind} cannot be shown to this policy: send text")
        texts.append(str(part.get("refusal" if kind == "refusal" else "text", "")))
    return "".join(texts)


def ignored(body: Mapping[str, Any]) -> list[str]:
    """The parameters of a request that have no effect. Raises Unreadable for those that cannot be ignored."""
    for key, what in _REFUSED.items():
        if body.get(key):
            raise Unreadable(f"{what} cannot be used in training: leave {key} out")
    if body.get("n") not in (None, 1):
        raise Unreadable("a trajectory has one answer to each request: leave n out")
    return [name for name in _UNUSED if body.get(name) is not None]


def invalid(refusal: Refusal) -> Json:
    """A refusal as OpenAI's endpoints put it."""
    code = "context_length_exceeded" if refusal.is_length else None
    return {"message": refusal.problem, "type": "invalid_request_error", "param": None, "code": code}


def most_tokens(*given: Any) -> int | None:
    """The bound on an answer's tokens that a request gives. Raises Unreadable."""
    found = next((each for each in given if each is not None), None)
    if found is not None and (not isinstance(found, int) or found < 1):
        raise Unreadable(f"{found!r} is not a number of tokens")
    return found


def function(name: str, description: Any, parameters: Any) -> Json:
    """A tool as chat templates take it."""
    return {
        "type": "function",
        "function": {"name": name, "description": description or "", "parameters": parameters or {"type": "object"}},
    }


def call(id: str, name: str, arguments: Any) -> Json:
    """A call of an earlier answer."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": written}}
