"""The `Dialect` protocol, and what the dialects share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

from rollout.programs.conversation import Answer, Asked, Refusal, Unreadable

Json = dict[str, Any]
Event = tuple[str, Json]
"""Its name, empty for none, and its data."""

_ROLES = ("system", "developer", "user", "assistant", "tool")
_MOST_MESSAGES = 10_000
"""Of one request, its calls counted too. Each takes some ten microseconds of the event loop."""
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
    _check(messages)
    return Asked(
        messages=_normalised(messages),
        tools=tools,
        model=str(body.get("model", "")),
        stream=bool(body.get("stream")),
        max_tokens=most_tokens,
    )


def _check(messages: Sequence[Json]) -> None:
    """Raises Unreadable where no policy can be shown the messages: vendors' endpoints refuse most of these as well."""
    open_calls: set[str] = set()
    count = len(messages)
    for message in messages:
        if message["role"] not in _ROLES:
            raise Unreadable(f"there is no role {message['role']!r:.80}: the roles are {', '.join(_ROLES)}")
        if message["role"] == "tool":
            id = message["tool_call_id"]
            if id not in open_calls:
                raise Unreadable(f"the result of {id!r:.80} is of no call before it, or that call has one already")
            open_calls.remove(id)
        ids = [call["id"] for call in message.get("tool_calls") or ()]
        if ids and message["role"] != "assistant":
            raise Unreadable(f"a message of the role {message['role']} has calls, which only an assistant's has")
        if len(set(ids)) < len(ids):
            raise Unreadable("two calls of a message have the same id")
        open_calls.update(ids)
        count += len(ids)
    if count > _MOST_MESSAGES:
        raise Unreadable(f"the request has more than {_MOST_MESSAGES} messages and calls")


def _normalised(messages: Sequence[Json]) -> list[Json]:
    """The messages as chat templates take them: one system message, first; later ones are a user's."""
    given = ["system" if message["role"] == "developer" else message["role"] for message in messages]
    first = next((at for at, role in enumerate(given) if role != "system"), len(given))
    said: list[Json] = []
    if first:
        system = "\n\n".join(message["content"] for message in messages[:first])
        said.append({**messages[0], "role": "system", "content": system})
    for role, message in zip(given[first:], messages[first:], strict=True):
        said.append({**message, "role": "user" if role == "system" else role})
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
