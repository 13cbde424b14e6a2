"""The deadline of a call: whom it cancels, what it lets pass, and that calls share a timer."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import anyio
import pytest
from clock import Clock

from mcp_rollout.gateway.connection.deadline import Deadline, Deadlines

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def test_what_takes_too_long_is_left_without_an_error(clock: Clock) -> None:
    reached: list[str] = []

    async def call() -> None:
        with Deadline(Deadlines(60)):
            try:
                await forever()
            except asyncio.CancelledError:
                reached.append("cancelled")
                await anyio.lowlevel.checkpoint()  # cleaning up is not cancelled again
                reached.append("cleaned up")
                raise
            reached.append("not reached")
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        reached.append("left")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await clock.advance(59)
        assert reached == []
        await clock.advance(2)
    assert reached == ["cancelled", "cleaned up", "left"]


async def test_what_is_done_in_time_leaves_nothing_behind() -> None:
    deadlines = Deadlines(60)
    with Deadline(deadlines):
        await anyio.lowlevel.checkpoint()
    with pytest.raises(ValueError, match="its own"), Deadline(deadlines):
        raise ValueError("its own")
    assert deadlines.running == {}


async def test_calls_end_each_at_its_own_time_also_where_earlier_ones_were_answered(clock: Clock) -> None:
    deadlines, ended = Deadlines(60), list[int]()

    async def call(number: int) -> None:
        with Deadline(deadlines):
            if number % 2:
                await forever()
            return
        ended.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(6):  # one every ten seconds
            tasks.start_soon(call, number)
            await clock.advance(10)
        for expected in ([], [1], [1], [1, 3], [1, 3], [1, 3, 5]):
            assert ended == expected
            await clock.advance(10)
    assert deadlines.running == {}


@pytest.mark.parametrize("by", ["task", "scope", "both"])
async def test_a_cancellation_from_outside_passes(by: str) -> None:
    passed: list[str] = []
    inside = anyio.Event()
    deadlines = Deadlines(60)

    async def call() -> None:
        try:
            with Deadline(deadlines) as deadline:
                inside.set()
                try:
                    await forever()
                finally:
                    if by == "both":
                        deadline.expire()
            passed.append("swallowed")
        except asyncio.CancelledError:
            passed.append("passed")
            raise

    if by == "scope":
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await inside.wait()
            tasks.cancel_scope.cancel()
    else:
        task = asyncio.create_task(call())
        await inside.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    assert passed == ["passed"]


async def test_the_clock_stops_while_it_is_suspended(clock: Clock) -> None:
    ended: list[str] = []
    deadline = Deadline(Deadlines(60))

    async def call() -> None:
        with deadline:
            await forever()
        ended.append("ended")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await clock.advance(50)
        left_s = deadline.suspend()
        await clock.advance(1000)
        deadline.resume(left_s)
        await clock.advance(5)
        assert ended == []
        await clock.advance(10)
    assert ended == ["ended"]


async def test_what_outlasts_the_call_does_not_start_its_clock_again(clock: Clock) -> None:
    done: list[str] = []
    deadline, resumed = Deadline(Deadlines(60)), anyio.Event()

    async def call() -> None:
        with deadline:
            pass
        await resumed.wait()
        done.append("undisturbed")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await clock.advance(1)
        deadline.resume(10)
        await clock.advance(20)
        resumed.set()
    assert done == ["undisturbed"]


async def test_many_calls_have_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, made = asyncio.get_running_loop(), list[float]()
    call_at = loop.call_at

    def counting(when: float, *given: Any, **more: Any) -> asyncio.TimerHandle:
        made.append(when)
        return call_at(when, *given, **more)

    monkeypatch.setattr(loop, "call_at", counting)
    deadlines, without_end = Deadlines(60), Deadlines(math.inf)
    for _ in range(1000):
        with Deadline(deadlines), Deadline(without_end):
            pass
    assert len(made) == 1
