"""`CallGuard` alone, between httpx2 and a server: what a fault of one answer means for the next to the same call."""

from typing import Any

import anyio
import httpx2
import pytest
from serving import listening

from gateway.transport.call_guard import CallGuard
from gateway.transport.delivery import Broke, Delivery
from gateway.transport.http_streams import BackgroundPosts
from gateway.transport.link import Link

pytestmark = pytest.mark.anyio
BODY = b'{"fine": true}'


async def answer(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": BODY})


class NeverWhole:
    """Announces more than it sends."""

    def __init__(self) -> None:
        self.begun = anyio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", b"99")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": BODY, "more_body": True})
        self.begun.set()
        await receive()
        await receive()


def guarded(inner: httpx2.AsyncBaseTransport) -> CallGuard:
    return CallGuard(inner, link=Link(), limit=100, background=BackgroundPosts(1), posts=anyio.CapacityLimiter(4))


async def test_an_answer_counts_though_an_earlier_one_to_the_same_call_broke_off() -> None:
    async with listening(answer) as address:
        guard = guarded(httpx2.AsyncHTTPTransport())
        async with httpx2.AsyncClient(transport=guard) as client:
            with Delivery() as delivery:
                delivery.break_off(Broke.LINE, "the stream broke off")
                assert (await client.post(address)).content == BODY
                assert delivery.broke is None


async def test_a_document_that_never_ends_is_given_up_with_its_call_and_holds_no_connection() -> None:
    server = NeverWhole()
    async with listening(server) as address:
        inner = httpx2.AsyncHTTPTransport()
        guard = guarded(inner)
        async with httpx2.AsyncClient(transport=guard, timeout=None) as client:
            responses: list[httpx2.Response] = []

            async def post(delivery: Delivery) -> None:
                responses.append(await client.post(address))

            with anyio.fail_after(20):
                async with anyio.create_task_group() as tasks:
                    with Delivery() as delivery:
                        tasks.start_soon(post, delivery)
                        await server.begun.wait()
            assert [response.status_code for response in responses] == [502]
            pool: Any = inner._pool  # pyright: ignore[reportPrivateUsage]
            assert pool.connections == [] and pool._requests == []
