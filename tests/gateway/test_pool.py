"""The stock of warm processes, when they do not start."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mcp_rollout.gateway.errors import ServerUnavailable
from mcp_rollout.gateway.leases.pool import BundlePool
from mcp_rollout.gateway.leases.taking import LONGEST_PAUSE_S, Backoff, Bundle, SharedAttempt

pytestmark = pytest.mark.anyio


class Server:
    """Starts or does not, and counts how often it was tried."""

    def __init__(self) -> None:
        self.begun, self.running, self.up = 0, 0, False
        self.defect: Exception | None = None
        self.defects = 0

    async def open(self, bundle: Bundle) -> None:
        self.begun += 1
        await anyio.lowlevel.checkpoint()
        if self.defect is not None:
            self.defects += 1
            raise self.defect
        if not self.up:
            raise ServerUnavailable("it did not start", server="world")
        self.running += 1

    async def discard(self, bundle: Bundle) -> None:
        await anyio.lowlevel.checkpoint()

    def pool(self, tasks: Any, **options: Any) -> BundlePool:
        return BundlePool(
            ("world",), open_bundle=self.open, discard=self.discard, first=Bundle(), tasks=tasks, **options
        )


async def turns(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


async def test_a_stock_whose_servers_do_not_start_is_not_tried_without_a_pause_and_fills_once_they_do() -> None:
    server = Server()
    async with anyio.create_task_group() as tasks:
        pool = server.pool(tasks, min_ready=4)
        await turns(2000)
        assert 3 <= server.begun <= 12  # hundreds without a pause
        server.up = True
        with anyio.fail_after(LONGEST_PAUSE_S + 5):
            while server.running < 3:
                await turns(1)
        pool.close()


async def test_a_session_does_not_wait_for_the_pause_and_gets_the_place_that_the_stock_would_take() -> None:
    server = Server()
    async with anyio.create_task_group() as tasks:
        pool = server.pool(tasks, min_ready=1, most=1)
        bundle = await pool.take(reset=False)
        pool.give_back(bundle, healthy=False)  # its place is free, and a warm start in it fails
        while server.begun == 0:
            await turns(1)
        with anyio.fail_after(20), pytest.raises(ServerUnavailable):
            await pool.take(reset=False)
        pool.close()
        tasks.cancel_scope.cancel()


def test_the_stock_is_filled_on_a_plain_asyncio_loop() -> None:
    """As that of a worker of verl, where a callback of the loop is not known to run under asyncio."""

    async def filled() -> None:
        server = Server()
        server.up = True
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                pool = server.pool(tasks, min_ready=1)
                await pool.take(reset=False)
                while server.running < 1:
                    await turns(1)
                pool.close()

    asyncio.run(filled())


async def test_a_defect_while_warming_ends_no_other_task_and_the_pool_goes_on() -> None:
    server = Server()
    server.defect = KeyError("a defect")
    async with anyio.create_task_group() as tasks:
        pool = server.pool(tasks, min_ready=2)
        while not server.defects:
            await turns(1)
        server.up, server.defect = True, None
        with anyio.fail_after(LONGEST_PAUSE_S + 5):
            while server.running < 1:
                await turns(1)
        pool.close()


async def test_pauses_grow_to_a_bound_however_long_a_server_is_down() -> None:
    backoff = Backoff()
    for _ in range(5000):
        backoff.not_before = 0.0
        backoff.failed()
    assert backoff.not_before - anyio.current_time() <= LONGEST_PAUSE_S
    backoff.succeeded()
    assert not backoff.pausing


async def test_one_failure_is_that_of_all_who_waited_for_it_and_who_comes_later_tries_again() -> None:
    attempt, answered, tried, failed = SharedAttempt(), anyio.Event(), 0, list[ServerUnavailable]()

    async def ask(fails: bool) -> None:
        nonlocal tried
        try:
            async with attempt.alone():
                tried += 1
                await answered.wait()
                if fails:
                    raise ServerUnavailable("it does not start")
        except ServerUnavailable as error:
            failed.append(error)

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(ask, True)
        await anyio.lowlevel.checkpoint()
        answered.set()
    assert tried == 1
    assert [str(error) for error in failed] == ["it does not start"] * 5
    await ask(False)
    assert tried == 2
    assert len(failed) == 5


async def test_who_waited_for_an_attempt_that_was_cancelled_tries_itself() -> None:
    attempt, tried = SharedAttempt(), 0

    async def ask(scope: anyio.CancelScope) -> None:
        nonlocal tried
        with scope:
            async with attempt.alone():
                tried += 1
                if tried == 1:
                    await anyio.sleep_forever()

    given_up = anyio.CancelScope()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, given_up)
        tasks.start_soon(ask, anyio.CancelScope())
        await anyio.lowlevel.checkpoint()
        given_up.cancel()
    assert tried == 2
