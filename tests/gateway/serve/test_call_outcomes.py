"""What `serve` keeps: outcomes of calls up to a number of bytes, and questions until their client has a stream.

And of a client's stream so many questions at a time.
"""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from mcp.shared.direct_dispatcher import create_direct_dispatcher_pair
from mcp_types import ClientCapabilities, ElicitationCapability

from mcp_rollout.gateway.connection.relay import ErrorAnswer, Json, Relay
from mcp_rollout.gateway.errors import DeliveryUnknown
from mcp_rollout.gateway.serve.bearers import Bearer
from mcp_rollout.gateway.serve.client_calls import RunningCalls
from mcp_rollout.gateway.serve.client_relay import ClientRelay
from mcp_rollout.gateway.serve.config import ServeConfig, TokenLimits
from mcp_rollout.gateway.serve.served_lease import LeasedCalls

pytestmark = pytest.mark.anyio
LIMIT = 1 << 20
TOOL = ("server", "tool")


async def test_outcomes_are_dropped_in_the_order_of_their_ends_also_beside_a_call_that_takes_long() -> None:
    bearer = Bearer("", TokenLimits(kept_bytes=LIMIT))
    calls = LeasedCalls(bearer)
    may_end, began = anyio.Event(), anyio.Event()

    async def slow() -> bytes:
        began.set()
        await may_end.wait()
        return b"slow"

    async def large() -> bytes:
        return bytes(LIMIT // 2)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calls.once, "slow", TOOL, slow)
        await began.wait()
        for key in "abcdef":
            await calls.once(key, TOOL, large)
        assert bearer.kept_bytes == LIMIT
        assert len(await calls.once("f", TOOL, large)) == LIMIT // 2
        with pytest.raises(DeliveryUnknown, match="not kept any more"):
            await calls.once("a", TOOL, large)
        may_end.set()
    assert await calls.once("slow", TOOL, large) == b"slow"
    calls.forget()
    assert bearer.kept_bytes == 0


async def test_a_question_is_refused_once_its_client_has_taken_no_stream() -> None:
    refused: list[str] = []
    ended = anyio.Event()
    async with anyio.create_task_group() as server:
        calls = RunningCalls(server, ServeConfig(take_over_s=0.05))

        async def ask(relay: Relay) -> None:
            try:
                await relay.request("elicitation/create", {})
            except ErrorAnswer as error:
                refused.append(str(error))
            ended.set()

        async def begin(relay: Relay) -> Json:
            server.start_soon(ask, relay)  # as a server's question, which arrives in a task of its connection
            await anyio.sleep_forever()
            raise AssertionError

        assert await calls.answer("session", 1, begin) is None
        with anyio.fail_after(20):
            await ended.wait()
    assert refused == ["the client took no stream for elicitation/create"]


@pytest.mark.parametrize("is_late", [True, False])
async def test_a_call_that_was_given_up_is_not_begun_again_by_a_server_that_is_late(is_late: bool) -> None:
    ended = anyio.Event()
    async with anyio.create_task_group() as server:
        calls = RunningCalls(server, ServeConfig(take_over_s=0.05, stream_after_s=0.05))

        async def begin(relay: Relay) -> Json:
            try:
                await anyio.sleep_forever()
            finally:
                ended.set()
            raise AssertionError

        assert await calls.answer("session", 1, begin) is None
        with calls.posted("session", 1, begun=True), anyio.fail_after(20):
            await ended.wait()
            call = calls.take("session", 1) if is_late else None
        assert not calls.has("session", 1)
    assert is_late == (call is not None)
    if call is not None:
        with pytest.raises(ErrorAnswer, match="cancelled"):
            call.outcome()


async def test_a_client_has_a_number_of_questions_to_answer_at_most() -> None:
    client, server = create_direct_dispatcher_pair()
    relay = ClientRelay(server, ClientCapabilities(elicitation=ElicitationCapability()), answer_s=600)
    asked: list[Any] = []
    answer = anyio.Event()

    async def on_request(context: Any, method: str, params: Any) -> Json:
        asked.append(params)
        await answer.wait()
        return {}

    async def on_notify(context: Any, method: str, params: Any) -> None: ...

    with anyio.fail_after(60):
        async with anyio.create_task_group() as running:
            running.start_soon(relay.pump)
            for side in (client, server):
                await running.start(side.run, on_request, on_notify)
            async with anyio.create_task_group() as asking:
                for _ in range(1000):
                    asking.start_soon(relay.request, "elicitation/create", {})
                while len(asked) < 1000:
                    await anyio.lowlevel.checkpoint()
                with pytest.raises(ErrorAnswer, match="the client has 1000 requests to answer"):
                    await relay.request("elicitation/create", {})
                answer.set()
            assert await relay.request("elicitation/create", {}) == {}
            relay.close()
            for side in (client, server):
                side.close()
