"""The `Dialect` protocol, and what the dialects share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

from mcp_rollout.rollout.programs.conversation import Answer, Asked, Refusal, Unreadable

Json = dict[str, Any]
Event = tuple[str, Json]
"""Its name, empty for none, and its data."""

_ROLES = ("system", "developer", "user", "assistant", "tool")
_MOST_MESSAGES = 10_000
"""Of one request, its calls counted too. Each takes some ten microseconds of the event loop."""
_READ = frozenset("model stream stream_options n tools tool_choice parallel_tool_calls".split())
"""Fields of every dialect that have an effect."""
_IGNORED = frozenset(
    "temperature top_p top_k min_p seed frequency_penalty presence_penalty repetition_penalty reasoning thinking "
    "reasoning_effort verbosity prediction max_tool_calls user metadata client_metadata safety_identifier store speed "
    "service_tier prompt_cache_key prompt_cache_retention prompt_cache_options cache_control inference_geo".split()
)
"""Sampling, which is the trainer's, and what changes no answer."""
_SILENT: Mapping[str, Any] = {
    **{"truncation": "disabled", "logprobs": False, "top_logprobs": 0, "background": False, "modalities": ["text"]},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "include": ["reasoning.encrypted_content"],
}
"""Values that ask for no more than is done, beside null and what is empty."""


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


def asked(body: Json, messages: Sequence[Json], tools: Sequence[Json], most_tokens: Any, *read: str) -> Asked:
    """A request of these messages and tools.

    Args:
        most_tokens: The bound on the answer's tokens that the request gives.
        read: The dialect's own fields.

    Raises:
        Unreadable: it has what cannot be ignored.
    """
    for key in body.keys() - _READ - _IGNORED - {*read}:
        if body[key] not in (None, "", [], {}, _SILENT.get(key)):
            raise Unreadable(f"the field {key:.80} cannot be used in training: leave {key:.80} out")
    for key in {"response_format", "text", "output_config", "thinking", "stream_options"} & body.keys():
        own = cast("Json", body[key] or {})
        kind = (own if key == "response_format" else own.get("format") or {}).get("type", "text")
        if kind != "text":
            raise Unreadable(f"answers of the format {kind!r:.80} are not sampled here: leave it out of {key}")
    if body.get("n") not in (None, 1):
        raise Unreadable("a trajectory has one answer to each request: leave n out")
    if most_tokens is not None and (type(most_tokens) is not int or most_tokens < 1):
        raise Unreadable(f"{most_tokens!r} is not a number of tokens")
    _check(messages)
    given = body.get("tool_choice") or "auto"
    choice: Json = {"type": given} if isinstance(given, str) else given
    is_single = choice.get("disable_parallel_tool_use") or body.get("parallel_tool_calls") is False
    return Asked(
        messages=_normalised(messages),
        tools=_chosen(choice, tools),
        offered=tools,
        model=str(body.get("model", "")),
        stream=bool(body.get("stream")),
        max_tokens=most_tokens,
        most_calls=1 if is_single else None,
        labels=_texts(body, "client_metadata") | _texts(body, "metadata"),
    )


def _texts(body: Json, key: str) -> dict[str, str]:
    return {name: str(value) for name, value in cast("Json", body.get(key) or {}).items()}


def _chosen(choice: Json, tools: Sequence[Json]) -> Sequence[Json]:
    """The tools that a `tool_choice` leaves. Raises Unreadable where these do not express it."""
    kind, own = choice["type"], choice.get("allowed_tools", choice)
    if kind in ("auto", "none"):
        return tools if kind == "auto" else ()
    if kind not in ("function", "tool", "allowed_tools", "required", "any"):
        raise Unreadable(f"tool_choice cannot be {kind!r:.80} here: leave it out")
    listed = own["tools"] if kind == "allowed_tools" else tools if kind in ("required", "any") else [choice]
    names = {str(each.get("function", each)["name"]) for each in listed}
    left = [tool for tool in tools if tool["function"]["name"] in names]
    if len(left) < len(names):
        raise Unreadable("tool_choice names a tool that is not offered")
    if len(left) != 1 and own.get("mode") != "auto":
        raise Unreadable(f"tool_choice cannot demand a call of one of {len(left)} tools: name one, or let it be auto")
    return left


def _check(messages: Sequence[Json]) -> None:
    """Raises Unreadable where no policy can be shown the messages: vendors' endpoints refuse most of these as well."""
    if not messages:
        raise Unreadable("there is no message to answer: send one")
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


def function(name: Any, description: Any, parameters: Any) -> Json:
    """A tool as chat templates take it. Raises `Unreadable`."""
    if not (isinstance(name, str) and name and isinstance(description or "", str)):
        raise Unreadable("the name or the description of a tool is not a text")
    parameters = parameters or {"type": "object"}
    if not isinstance(parameters.get("properties") or {}, dict):
        raise Unreadable(f"the parameters of {name:.80} are not a JSON schema of an object")
    return {
        "type": "function",
        "function": {"name": name, "description": description or "", "parameters": parameters},
    }


def call(id: Any, name: Any, arguments: Any) -> Json:
    """A call of an earlier answer. Raises `Unreadable`."""
    for what, text in (("id", id), ("name", name)):
        if not isinstance(text, str):
            raise Unreadable(f"the {what} of a call is not a text")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": written}}
