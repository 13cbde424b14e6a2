"""Rules of every request to a chat API, whoever asks."""

from __future__ import annotations

import base64
import gzip
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx2
import pytest
from serving import listening
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mcp_rollout.mcp_wire.chat_api import ApiError, ApiLost, complete, open_client, post

pytestmark = pytest.mark.anyio
SAID = {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}
TLS = httpx2.create_ssl_context()


@asynccontextmanager
async def asked(
    answer: Callable[[Request], Response], credentials: str = "", query: str = "", **given: str
) -> AsyncIterator[httpx2.AsyncClient]:
    async def respond(request: Request) -> Response:
        return answer(request)

    async with listening(Starlette(routes=[Route("/v1/chat/completions", respond, methods=["POST"])])) as address:
        url = f"{address.replace('http://', f'http://{credentials}')}/v1{query}"
        async with open_client(url, tls=TLS, timeout=10, **given) as client:
            yield client


async def test_a_password_reaches_the_api_and_no_log_and_a_key_goes_before_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str | None] = []

    def answer(request: Request) -> Response:
        seen.append(request.headers.get("authorization"))
        return JSONResponse(SAID)

    for given in ({}, {"api_key": "k3y"}):
        async with asked(answer, "alice:pass-word-1@", **given) as client:
            assert (await complete(client, {})).text == "yes"
    assert seen == ["Basic " + base64.b64encode(b"alice:pass-word-1").decode(), "Bearer k3y"]
    assert "HTTP Request" in caplog.text and "alice" not in caplog.text and "pass-word-1" not in caplog.text


async def test_a_query_of_the_address_reaches_the_api_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []

    def answer(request: Request) -> Response:
        seen.append(request.url.query)
        return JSONResponse(SAID)

    async with asked(answer, query="?api-key=s3cret&version=1") as client:
        assert (await complete(client, {})).text == "yes"
        assert "s3cret" not in str(client.base_url)
    assert seen == ["api-key=s3cret&version=1"]
    assert "HTTP Request" in caplog.text and "s3cret" not in caplog.text


async def test_a_key_that_no_header_can_hold_is_not_quoted() -> None:
    async with asked(lambda _: JSONResponse(SAID), api_key="s3cret\n") as client:
        with pytest.raises(ApiError) as refused:
            await complete(client, {})
    assert "s3cret" not in f"{refused.value} {refused.value.said} {refused.value.__cause__}"


async def test_the_bound_on_an_answer_counts_what_it_is_decompressed_to() -> None:
    body = gzip.compress(b" " * 100_000)
    async with asked(lambda _: Response(body, headers={"content-encoding": "gzip"})) as client:
        assert len(await post(client, "/chat/completions", {}, most_bytes=100_000)) == 100_000
        with pytest.raises(ApiError, match="more than 99999 bytes"):
            await post(client, "/chat/completions", {}, most_bytes=99_999)


async def test_a_busy_api_has_run_nothing_and_says_when_to_ask_again() -> None:
    async with asked(lambda _: Response("s3cret", 429, headers={"retry-after": "7"})) as client:
        with pytest.raises(ApiLost) as busy:
            await complete(client, {})
    assert (busy.value.may_have_run, busy.value.retry_after_s, busy.value.said) == (False, 7, "s3cret")
    assert str(busy.value) == "the endpoint answered HTTP 429"


async def test_nothing_that_was_answered_is_quoted() -> None:
    async with asked(lambda _: JSONResponse({"choices": [{"message": {"content": {"s3cret": 1}}}]})) as client:
        with pytest.raises(ApiError, match=r"^choices\.0\.message\.content\.str: Input should be a valid string$"):
            await complete(client, {})
    async with asked(lambda _: JSONResponse({"choices": [{"message": {}}]})) as client:
        with pytest.raises(ApiError, match="has no text"):
            assert (await complete(client, {})).text
