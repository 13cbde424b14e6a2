"""Chat APIs, with one set of rules for every model that is asked: as a policy, a judge, a user, or for a server.

A request has one answer in one piece, of bounded size. Nothing is retried here: an error says whether the request may
have run, and the caller knows whether asking again has a cost. Bounds in time are the callers', too.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, Field, ValidationError

MOST_BYTES = 8 << 20
"""Of an answer, decompressed: a compressed one may be a thousandth of it."""
_BUSY = (429, 502, 503, 504)
"""Status codes after which a retry may help: nothing was sampled."""

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


class CalledFunction(BaseModel):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(BaseModel):
    function: CalledFunction


class ChatMessage(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(BaseModel):
    message: ChatMessage
    finish_reason: str | None = None


class Completion(BaseModel):
    """The answer of `/chat/completions`."""

    choices: list[Choice] = Field(min_length=1)
    model: str | None = None
    usage: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """What the model said. Raises ApiError where it said nothing, as one that only calls tools."""
        text = self.choices[0].message.content
        if text is None:
            raise ApiError("the endpoint's answer has no text")
        return text


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

    The query is added to each request. A client with one uses no proxy of the environment.

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
    hiding: Completing | None = None
    if given.query:

        def with_query(request: httpx2.Request) -> None:
            query = b"&".join(filter(None, (request.url.query, given.query)))
            request.url = request.url.copy_with(query=query)

        hiding = Completing(httpx2.AsyncHTTPTransport(verify=tls, limits=limits), with_query)
    return httpx2.AsyncClient(
        base_url=shown, headers=headers, auth=auth, timeout=timeout, limits=limits, verify=tls, transport=hiding
    )


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
    """Raises ApiError where the content has another form."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"])) or "the answer"
        raise ApiError(f"{key}: {fault['msg']}") from error


def check_status(response: httpx2.Response, content: bytes) -> None:
    """Raises ApiError unless the status is 200."""
    if response.status_code == 200:
        return
    problem, said = f"the endpoint answered HTTP {response.status_code}", content[:500].decode(errors="replace")
    if response.status_code in _BUSY:
        pause_s = retry_after_s(response.headers.get("retry-after", ""))
        raise ApiLost(problem, said=said, may_have_run=False, retry_after_s=pause_s)
    raise ApiError(problem, said=said)


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
