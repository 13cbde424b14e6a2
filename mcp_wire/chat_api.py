"""Chat APIs, with one set of rules for every model that is asked: as a policy, a judge, a user, or for a server.

A request has one answer in one piece, of bounded size. Nothing is retried here: an error says whether the request may
have run, and the caller knows whether asking again has a cost. Bounds in time are the callers', too.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any, TypeVar, cast

import httpx2
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from mcp_rollout.mcp_wire.proxies import proxy_of

MOST_BYTES = 8 << 20
"""Of an answer, decompressed: a compressed one may be a thousandth of it."""
_BUSY = (429, 502, 503, 504, 529)
"""Status codes after which a retry may help: nothing was sampled. 529 is Anthropic's, of a model that is overloaded."""
_FAILED = ("error", "network_error", "insufficient_system_resource")
"""Reasons with which APIs end an answer that their model has not ended: of OpenRouter, Z.ai and DeepSeek."""
_HALF = re.compile(rb"\\ud[89ab]..(?!\\ud[c-f])|(?<!\\ud[89ab]..)\\ud[c-f]..", re.IGNORECASE)
"""Half of a surrogate pair in JSON, which models write and strict parsers refuse."""

_MOST_SAID = 500
"""Characters of an API's own words in an error."""
_MOST_SEARCHED = 10_000
_CONTEXT = re.compile(r"context[ _-](?:length|size|window|limit)", re.IGNORECASE)
_EXCEEDED = re.compile(r"exceed|maximum|\bmax\b|longer|larger|greater|reached|too |\bonly\b|you have", re.IGNORECASE)
_TOO_LONG = re.compile(
    r"(?:prompt|inputs?|messages|conversation)\b(?![\[.]).{0,80}(?:exceed|too (?:long|large)|longer than|less than)"
    r"|model(?:'s)? token limit|maximum prompt length|too many (?:input |prompt )?tokens|reduce the length"
    r"|tokens \+ .max_new_tokens|exceed max message tokens|range of input length|request_too_large",
    re.IGNORECASE | re.DOTALL,
)
"""How APIs and servers say that a conversation exceeds the model's context."""

_NO_LIMITS = httpx2.Limits()

M = TypeVar("M", bound=BaseModel)


class ApiError(Exception):
    """The API refuses, or its answer has another form.

    The text names no address and no key, and quotes nothing that was answered, so others may read it.
    """

    def __init__(self, message: str, *, said: str = "") -> None:
        super().__init__(message)
        self.said = said
        """The beginning of what was answered, or the connection's own error, for the operator only."""


class ApiLost(ApiError):
    """Nothing answers, the connection broke, or the API is busy: a retry may help."""

    def __init__(self, message: str, *, said: str, may_have_run: bool, retry_after_s: float = 0.0) -> None:
        super().__init__(message, said=said)
        self.may_have_run = may_have_run
        """Whether the API may have taken the request up."""
        self.retry_after_s = retry_after_s
        """The pause that the API asks for, 0 where it asks for none."""


class ApiTooLong(ApiError):
    """The request is longer than the model's context, or than what the API takes."""


class Extended(BaseModel):
    """A part of an answer whose further keys are kept: APIs add their own."""

    model_config = ConfigDict(extra="allow")

    @property
    def further(self) -> dict[str, Any]:
        return {key: value for key, value in (self.model_extra or {}).items() if value is not None}


class ChatMessage(Extended):
    content: str | list[Any] | None = None
    """A text, or parts of several types."""
    refusal: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None
    role: Any = None

    @property
    def calls(self) -> list[dict[str, Any]]:
        return self.tool_calls or ([{"function": self.function_call}] if self.function_call else [])

    @property
    def text(self) -> str:
        """What was said: the content without its thoughts, or else the refusal."""
        parts = self.content if isinstance(self.content, list) else [self.content]
        return _texts_of([part for part in parts if not _is_thought(part)], "") or self.refusal or ""

    @property
    def thinking(self) -> str:
        """The thoughts, under whichever name the API gives them, or in parts of the content."""
        parts = self.content if isinstance(self.content, list) else []
        places = [*map(self.further.get, _THINKING), list(filter(_is_thought, parts))]
        return next(filter(None, (_texts_of(place).strip() for place in places)), "")


class Choice(BaseModel):
    message: ChatMessage
    finish_reason: str | None = None
    error: Any = None

    @model_validator(mode="after")
    def _is_an_answer(self) -> Choice:
        if self.error or self.finish_reason in _FAILED:
            raise ValueError("the API reports an error")
        return self


class Completion(BaseModel):
    """The answer of `/chat/completions`."""

    choices: list[Choice] = Field(min_length=1)
    model: str | None = None
    usage: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """What the model said. Raises ApiError where it said nothing, as one that only calls tools."""
        message = self.choices[0].message
        if message.content is None and not message.refusal:
            raise ApiError("the endpoint's answer has no text")
        return message.text


_THINKING = ("reasoning_content", "reasoning", "reasoning_text", "thinking", "reasoning_details", "thinking_blocks")
"""Keys of a message that hold its thoughts: of DeepSeek and older vLLM, newer vLLM, Ollama, OpenRouter, LiteLLM."""
_TEXTS = ("text", "thinking", "reasoning", "summary", "content", "refusal")
"""Keys of a part of a message that can hold its text."""


def _is_thought(part: Any) -> bool:
    """Whether a part of a content is a thought."""
    kind = cast("Mapping[str, Any]", part).get("type") if isinstance(part, Mapping) else None
    return str(kind).startswith(("thinking", "redacted_thinking", "reasoning"))


def _texts_of(value: Any, between: str = "\n") -> str:
    """The texts of a message's content, part or parts, in any of the forms that APIs give them."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return between.join(filter(None, (_texts_of(each, between) for each in cast("list[Any]", value))))
    part: Mapping[str, Any] = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
    return next(filter(None, (_texts_of(part[key], between) for key in _TEXTS if key in part)), "")


def with_options(body: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a request with a user's keys above its own; null removes one.

    `max_completion_tokens`, as newer APIs call it, goes in place of `max_tokens`, and is at most that.
    """
    merged = {key: value for key, value in {**body, **options}.items() if value is not None}
    if isinstance(newer := merged.get("max_completion_tokens"), int) and "max_tokens" in merged:
        merged["max_completion_tokens"] = min(newer, merged.pop("max_tokens"))
    return merged


def open_client(
    url: str,
    *,
    tls: ssl.SSLContext,
    timeout: httpx2.Timeout | float,
    api_key: str | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
    limits: httpx2.Limits = _NO_LIMITS,
) -> httpx2.AsyncClient:
    """A client for the API at a base address. No log line of it has the address's user, password or query.

    The query is added to each request.

    Args:
        api_key: sent as a bearer token, in place of the address's user and password.
        headers: of every request.

    Raises:
        httpx2.InvalidURL, ValueError: `url` is not an address.
    """
    given = httpx2.URL(url)
    auth = httpx2.BasicAuth(given.username, given.password) if given.userinfo and not api_key else None
    if api_key:
        headers = {**headers, "authorization": f"Bearer {api_key}"}
    shown = given.copy_with(userinfo=b"", query=None)
    transport: httpx2.AsyncBaseTransport
    transport = httpx2.AsyncHTTPTransport(verify=tls, limits=limits, proxy=proxy_of(url) or None)
    if given.query:

        def with_query(request: httpx2.Request) -> None:
            query = b"&".join(filter(None, (request.url.query, given.query)))
            request.url = request.url.copy_with(query=query)

        transport = Completing(transport, with_query)
    return httpx2.AsyncClient(base_url=shown, headers=headers, auth=auth, timeout=timeout, transport=transport)


class Completing(httpx2.AsyncBaseTransport):
    """Adds to each request what no log line may have, such as a key in its address, and only while it is under way."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, complete: Callable[[httpx2.Request], None]) -> None:
        self._inner, self._complete = inner, complete

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        shown = request.url
        self._complete(request)
        try:
            return await self._inner.handle_async_request(request)
        finally:
            request.url = shown  # httpx2 logs it once its answer has arrived, and errors quote it

    async def aclose(self) -> None:
        await self._inner.aclose()


async def complete(client: httpx2.AsyncClient, body: Mapping[str, Any]) -> Completion:
    """Raises ApiError, also where the answer is not a chat completion."""
    return parsed(Completion, await post(client, "/chat/completions", body))


async def post(
    client: httpx2.AsyncClient, path: str, body: Mapping[str, Any], *, most_bytes: int = MOST_BYTES
) -> bytes:
    """The content that answers one request. Raises ApiError."""
    with transport_errors():
        async with client.stream("POST", path, json=body) as response:
            content = await read(response, most_bytes)
    for header in ("authorization", "x-api-key"):  # which an API may quote
        if key := response.request.headers.get(header, "").removeprefix("Bearer "):
            content = content.replace(key.encode(), b"[secret]")
    check_status(response, content)
    return content


async def read(response: httpx2.Response, most_bytes: int) -> bytes:
    """The content of a response. Raises ApiError where it is longer."""
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > most_bytes:
            raise ApiError(f"the endpoint answered with more than {most_bytes} bytes")
    return bytes(content)


def parsed(model: type[M], content: bytes) -> M:
    """Raises ApiError where the content has another form, as where it is an error in spite of its status."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        if (whole := _HALF.sub(rb"\\ufffd", content)) != content:
            return parsed(model, whole)
        fault = error.errors()[0]
        if said := None if fault["type"] == "json_invalid" else _error_of(from_json(content)):
            code: Any = cast("Mapping[str, Any]", said).get("code") if isinstance(said, Mapping) else None
            text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
            raise _refusal("the endpoint answered with an error", text, code) from error
        key = ".".join(map(str, fault["loc"])) or "the answer"
        raise ApiError(f"{key}: {fault['msg']}", said=content[:_MOST_SAID].decode(errors="replace")) from error


def _error_of(answer: Any) -> Any:
    """An error in place of an answer, or of its first choice."""
    while isinstance(answer, list) and answer:
        answer = cast("Any", answer[0])
    if not isinstance(answer, Mapping):
        return None
    given = cast("Mapping[str, Any]", answer)
    # Without an error's own code it is as 503: what broke is the API, and another request may be answered.
    failed = {"finish_reason": reason, "code": 503} if (reason := given.get("finish_reason")) in _FAILED else None
    return given.get("error") or failed or _error_of(given.get("choices"))


def check_status(response: httpx2.Response, content: bytes) -> None:
    """Raises ApiError unless the status is 200."""
    if response.status_code == 200:
        return
    pause_s = retry_after_s(response.headers.get("retry-after", ""))
    problem, said = f"the endpoint answered HTTP {response.status_code}", content.decode(errors="replace")
    raise _refusal(problem, said, response.status_code, pause_s=pause_s)


def _refusal(problem: str, said: str, status: object, *, pause_s: float = 0.0) -> ApiError:
    """The error that an API's status code and words amount to."""
    words, text = said[:_MOST_SAID], said[:_MOST_SEARCHED]
    if status in _BUSY:
        return ApiLost(problem, said=words, may_have_run=False, retry_after_s=pause_s)
    is_told = _TOO_LONG.search(text) or (_CONTEXT.search(text) and _EXCEEDED.search(text))
    is_longer = status == 413 or (is_told and status not in (401, 403, 404))
    return (ApiTooLong if is_longer else ApiError)(problem, said=words)


@contextmanager
def transport_errors() -> Generator[None]:
    """What httpx2 raises in the block, as an ApiError."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        problem = f"nothing answers ({type(error).__name__}): start the endpoint, or correct its address"
        raise ApiLost(problem, said=str(error), may_have_run=False) from error
    except httpx2.LocalProtocolError:  # without its text and cause, which may quote the header with the key
        raise ApiLost("the connection broke (LocalProtocolError)", said="", may_have_run=True) from None
    except httpx2.TransportError as error:
        problem = f"the connection broke ({type(error).__name__})"
        raise ApiLost(problem, said=str(error), may_have_run=True) from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ApiError(f"the endpoint cannot be asked ({type(error).__name__})", said=str(error)) from error


def retry_after_s(header: str) -> float:
    """Seconds that the header asks to wait (RFC 9110, section 10.2.3): a number or a date; 0 for anything else."""
    if header.strip().isdecimal():
        return float(header)
    try:
        return max((parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds(), 0.0)
    except (ValueError, TypeError):  # no date, or one without a zone
        return 0.0
