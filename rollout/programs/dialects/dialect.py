"""The `Dialect` protocol, and what the dialects share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

from rollout.programs.conversation import Answer, Asked, Refusal, Unreadable

Json = dict[str, Any]
Event = tuple[str, Json]
"""Its name, empty for none, and its data."""

_REFUSED = {
    "stop": "stop sequences",
    "stop_sequences": "stop sequences",
    "logit_bias": "logit_bias",
    "prefill": "prefilled answers",
    "audio": "audio",
    "previous_response_id": "conversations that are kept by the endpoint (send the whole input; store: false)",
}


class Dialect(Protocol):
    """One API of model endpoints. A request's sampling parameters have no effect: they are the trainer's."""

    done = b""
    """What ends a stream, after the events."""

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
        """A refusal as the body of a 400; by default as OpenAI's endpoints put it."""
        code = "context_length_exceeded" if refusal.is_length else None
        return {"error": {"message": refusal.problem, "type": "invalid_request_error", "param": None, "code": code}}

    def failed(self, refusal: Refusal, body: Json) -> Event:
        """A refusal in a stream that has begun."""
        return "", self.error(refusal)


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


def asked(body: Json, messages: Sequence[Json], tools: Sequence[Json], most_tokens: Any) -> Asked:
    """A request of these messages and tools.

    Args:
        most_tokens: The bound on the answer's tokens that the request gives.

    Raises:
        Unreadable: it has what cannot be ignored.
    """
    for key, what in _REFUSED.items():
        if body.get(key):
            raise Unreadable(f"{what} cannot be used in training: leave {key} out")
    if body.get("n") not in (None, 1):
        raise Unreadable("a trajectory has one answer to each request: leave n out")
    if most_tokens is not None and (not isinstance(most_tokens, int) or most_tokens < 1):
        raise Unreadable(f"{most_tokens!r} is not a number of tokens")
    return Asked(
        messages=_normalised(messages),
        tools=tools,
        model=str(body.get("model", "")),
        stream=bool(body.get("stream")),
        max_tokens=most_tokens,
    )


def _normalised(messages: Sequence[Json]) -> list[Json]:
    """The messages as chat templates take them: one system message, first; later ones are a user's."""
    said: list[Json] = []
    for message in messages:
        role = "system" if message["role"] == "developer" else message["role"]
        if role == "system" and len(said) == 1 and said[0]["role"] == "system":
            said[0] = {**said[0], "content": f"{said[0]['content']}\n\n{message['content']}"}
        else:
            said.append({**message, "role": "user" if role == "system" and said else role})
    return said


def check_format(asked_for: Any, key: str) -> None:
    """Raises Unreadable where a request wants an answer of a format of its own."""
    kind = cast("Json", asked_for or {}).get("type", "text")
    if kind != "text":
        raise Unreadable(f"answers of the format {kind} are not sampled here: leave {key} out")


def function(name: str, description: Any, parameters: Any) -> Json:
    """A tool as chat templates take it."""
    return {
        "type": "function",
        "function": {"name": name, "description": description or "", "parameters": parameters or {"type": "object"}},
    }


def call(id: Any, name: Any, arguments: Any) -> Json:
    """A call of an earlier answer. Raises `Unreadable`."""
    for what, text in (("id", id), ("name", name)):
        if not isinstance(text, str):
            raise Unreadable(f"the {what} of a call is not a text")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": written}}
