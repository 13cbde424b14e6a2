"""Servers that mean harm, over streamable HTTP; outcomes as in docs/security.md."""

import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from memory import peak_growth
from neighbour import attempt, beside, good

from mcp_rollout import Gateway, GatewayConfig, GatewayError, Session, ToolResult
from mcp_rollout.gateway.errors import CallTimeout, ConnectTimeout, DeliveryUnknown, ProtocolError

pytestmark = pytest.mark.anyio

HOSTILE = Path(__file__).with_name("hostile_http.py")
LIMIT = 8 << 20


@asynccontextmanager
async def listening(behaviour: str, *args: str) -> AsyncIterator[str]:
    argv = [sys.executable, "-I", "-S", str(HOSTILE), behaviour, *args]
    async with await anyio.open_process(argv, stderr=None) as process:
        assert process.stdout is not None
        port = int(await process.stdout.receive())
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()


def gateway(url: str, **entry: Any) -> Gateway:
    bad = {"url": url, "start_timeout_s": 5, "call_timeout_s": 20, "close_timeout_s": 0.5, **entry}
    return Gateway(GatewayConfig.model_validate({"servers": {"bad": bad, "good": good()}}))


@asynccontextmanager
async def harmed(
    behaviour: str, *args: str, **entry: Any
) -> AsyncIterator[tuple[ToolResult | GatewayError, int, Session]]:
    """What one call of `harm` came to, how many rounds the neighbour played meanwhile, and the session after it."""
    async with (
        listening(behaviour, *args) as url,
        gateway(url, **entry) as gate,
        gate.lease(trajectory="victim", task=None, seed=1) as session,
    ):
        outcome, neighbour = await beside(gate, lambda: attempt(session, "harm"))
        yield outcome, neighbour.rounds, session


async def still_serves(session: Session) -> bool:
    outcome = await attempt(session, "echo")
    return isinstance(outcome, ToolResult) and outcome.text == "hostile"


async def called(session: Session, times: int) -> None:
    for _ in range(times):
        await session.call("echo", {})


async def test_a_server_that_never_lists_its_tools_is_left_out_in_time() -> None:
    async with listening("hang in list") as url, gateway(url, start_timeout_s=0.5) as gate:
        assert type(gate.failures["bad"]) is ConnectTimeout and list(gate.catalogue) == ["good"]
        await beside(gate, lambda: anyio.lowlevel.checkpoint())


@pytest.mark.parametrize("behaviour", ["hang in call", "hang in call and cancellation", "drip"])
async def test_a_call_that_is_not_answered_ends_in_time_and_alone(behaviour: str) -> None:
    """So does its line: the one that drips answers nothing else until that has been closed."""
    async with harmed(behaviour, call_timeout_s=1) as (outcome, rounds, session):
        assert type(outcome) is CallTimeout and rounds > 0
        assert await still_serves(session)


@pytest.mark.parametrize(
    "behaviour",
    [
        "large answer",
        "large answer, unannounced",
        "large error",
        "large event",
        "endless event",
        "many events",
        "compressed answer",
    ],
)
async def test_fifty_megabytes_are_refused_in_bounded_memory(behaviour: str) -> None:
    async with (
        listening(behaviour) as url,
        gateway(url) as gate,
        gate.lease(trajectory="victim", task=None, seed=1) as session,
    ):
        with peak_growth() as growth:
            outcome, _ = await beside(gate, lambda: attempt(session, "harm"))
        assert type(outcome) is ProtocolError, outcome
        assert growth() < 5 * LIMIT
        assert await still_serves(session)


@pytest.mark.parametrize("behaviour", ["get redirect", "get answered", "get endless event"])
async def test_a_body_that_nobody_needs_is_not_read(behaviour: str) -> None:
    with peak_growth() as growth:
        async with harmed(behaviour) as (outcome, _, session):
            assert isinstance(outcome, ToolResult) and outcome.text == "over"
            assert await still_serves(session)
        assert growth() < 5 * LIMIT


async def test_a_resumed_stream_has_the_same_bound_as_the_answer_that_it_goes_on_with() -> None:
    with peak_growth() as growth:
        async with harmed("resumed with an endless event") as (outcome, _, session):
            assert type(outcome) is ProtocolError and "max_message_bytes" in str(outcome)
            assert await still_serves(session)
        assert growth() < 5 * LIMIT


async def test_a_body_that_nobody_needs_is_not_read_when_a_session_is_closed_either() -> None:
    with peak_growth() as growth:
        async with listening("delete answered") as url, gateway(url, close_timeout_s=20) as gate:
            assert not gate.failures
        assert growth() < 5 * LIMIT


async def test_over_sse_neither() -> None:
    with peak_growth() as growth:
        async with listening("sse redirect") as url, gateway(url, type="sse", start_timeout_s=20) as gate:
            assert "307" in str(gate.failures["bad"])
        assert growth() < 5 * LIMIT


async def test_a_stream_that_ends_at_once_is_opened_again_once_a_second() -> None:
    async with listening("get retry") as url, gateway(url) as gate:
        async with gate.lease(trajectory="victim", task=None, seed=1) as session:
            await beside(gate, lambda: called(session, 100))
            opened, seconds = json.loads((await session.call("harm", {})).text)
    assert 1 < opened <= 6 + seconds


async def test_an_answer_that_breaks_off_for_ever_is_asked_for_once_a_second_and_not_after_its_call() -> None:
    async with harmed("resumed for ever", call_timeout_s=1) as (outcome, _, session):
        assert type(outcome) is CallTimeout
        counts: list[tuple[int, float]] = []
        for _ in range(2):
            counts.append(json.loads((await session.call("echo", {})).text))
            await called(session, 50)
        assert 1 < counts[0][0] <= 6 + counts[0][1]
        assert counts[1][0] == counts[0][0]


@pytest.mark.full  # mcp takes half a millisecond for each
async def test_twenty_thousand_notifications_do_not_keep_an_answer_from_its_call() -> None:
    async with harmed("20,000 notifications") as (outcome, _, session):
        assert isinstance(outcome, ToolResult) and outcome.text == "after 20,000"
        assert await still_serves(session)


async def test_a_result_of_more_blocks_than_are_handled_fails_its_call_alone() -> None:
    async with harmed("many blocks") as (outcome, _, session):
        assert type(outcome) is ProtocolError and "20000 items under 'content'" in str(outcome)
        assert await still_serves(session)


async def test_an_event_of_a_million_lines_fails_its_call_alone() -> None:
    async with harmed("many data lines", max_message_bytes=1 << 20) as (outcome, _, session):
        assert type(outcome) is ProtocolError
        assert await still_serves(session)


async def test_over_sse_an_event_of_a_million_lines_does_not_keep_an_answer_from_its_call() -> None:
    async with listening("sse many data lines") as url:
        async with gateway(f"{url.removesuffix('/mcp')}/sse", type="sse", max_message_bytes=1 << 20) as gate:
            async with gate.lease(trajectory="victim", task=None, seed=1) as session:
                outcome, _ = await beside(gate, lambda: attempt(session, "harm"))
                assert isinstance(outcome, ToolResult) and outcome.text == "hostile"
                assert await still_serves(session)


async def test_nobody_is_sent_elsewhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.setblocking(False)
        async with harmed("redirect", f"http://127.0.0.1:{elsewhere.getsockname()[1]}/") as (outcome, _, session):
            assert isinstance(outcome, GatewayError) and "edirect" in str(outcome)
            assert await still_serves(session)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()


@pytest.mark.parametrize("behaviour", ["garbage", "garbage event", "web page", "nothing", "deep"])
async def test_an_answer_that_is_none_fails_its_call_alone(behaviour: str) -> None:
    async with harmed(behaviour, call_timeout_s=5) as (outcome, _, session):
        assert isinstance(outcome, ProtocolError | DeliveryUnknown), outcome
        assert await still_serves(session)
