"""Bodies that mcp would read whole although nobody needs them: of any length, unless they are kept from it."""

from __future__ import annotations

import httpx2

MOST_BYTES = 64 << 10
"""What is read of such a body, so that the line can be used again; closing it costs less than reading more."""


class DiscardedBodies(httpx2.AsyncBaseTransport):
    """Leaves out what redirects say, what a DELETE is answered with, and answers to a GET that are no event stream.

    Answers to a POST are somebody's: whoever reads them limits them.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        if _is_needed(request, response) or _is_short(response):
            return response
        await response.aclose()
        headers = [(name, value) for name, value in response.headers.multi_items() if name not in _ABOUT_THE_BODY]
        return httpx2.Response(response.status_code, headers=headers, request=request)

    async def aclose(self) -> None:
        await self._inner.aclose()


_ABOUT_THE_BODY = frozenset(("content-encoding", "content-length", "transfer-encoding"))


def _is_needed(request: httpx2.Request, response: httpx2.Response) -> bool:
    if request.method == "POST":
        return not 300 <= response.status_code < 400
    event_stream = header(response, b"content-type").startswith(b"text/event-stream")
    return request.method == "GET" and response.status_code == 200 and event_stream and is_plain(response)


def _is_short(response: httpx2.Response) -> bool:
    length = header(response, b"content-length")
    return length.isdigit() and int(length) <= MOST_BYTES and is_plain(response)


def is_plain(response: httpx2.Response) -> bool:
    """Whether the body is sent as it is, so that its size on the line is its size."""
    return header(response, b"content-encoding") in (b"", b"identity")


def header(response: httpx2.Response, name: bytes) -> bytes:
    """The first header of this name, empty where there is none; `name` in small letters.

    On the path of every call: `response.headers` decodes all of them each time it is asked for one.
    """
    for given, value in response.headers.raw:
        if given.lower() == name:
            return value
    return b""


async def drain(response: httpx2.Response) -> None:
    """Read a body that says nothing, so that the line can be used again; a long one is not worth it."""
    size = 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > MOST_BYTES:
            return
