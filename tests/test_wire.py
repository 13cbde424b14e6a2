"""Streams that callbacks of the event loop fill."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator

import anyio
import pytest

from mcp_rollout.mcp_wire.streams import Inbox

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pipe() -> AsyncGenerator[asyncio.ReadTransport]:
    reads, writes = os.pipe()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(asyncio.Protocol, os.fdopen(reads, "rb", 0))
    yield transport
    transport.close()
    os.close(writes)


async def test_a_reader_that_falls_behind_pauses_the_source_until_little_is_left(pipe: asyncio.ReadTransport) -> None:
    inbox = Inbox[int]()
    inbox.source = pipe
    for number in range(1001):
        assert pipe.is_reading()
        inbox.put(number)
    assert not pipe.is_reading()
    for number in range(902):
        assert not pipe.is_reading()
        assert await inbox.receive() == number
    assert await inbox.receive() == 902 and pipe.is_reading()


async def test_a_source_that_is_held_is_read_again_once_both_reasons_are_over(pipe: asyncio.ReadTransport) -> None:
    inbox = Inbox[int]()
    inbox.hold(True)
    inbox.source = pipe
    inbox.hold(True)  # the first time there was nothing to pause
    assert not pipe.is_reading()
    for number in range(1001):
        inbox.put(number)
    inbox.hold(False)
    assert not pipe.is_reading()
    for _ in range(1001):
        await inbox.receive()
    assert pipe.is_reading()


async def test_what_has_arrived_is_received_after_the_end_and_nothing_else() -> None:
    inbox = Inbox[str]()
    inbox.put("before")
    inbox.close()
    inbox.put("after")
    assert [item async for item in inbox] == ["before"]


async def test_a_waiting_reader_gets_an_item_and_the_end() -> None:
    inbox, found = Inbox[str](), list[str]()

    async def read() -> None:
        found.extend([item async for item in inbox])

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            inbox.put("late")
            await anyio.wait_all_tasks_blocked()
            inbox.close()
    assert found == ["late"]
