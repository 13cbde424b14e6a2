"""A fork has what its program did before the fork, as a spawned process has; or it is not forked."""

from __future__ import annotations

import os
import signal

import anyio
import pytest
from forking import ask, config, leases

from gateway import Gateway

pytestmark = pytest.mark.anyio


async def test_more_forks_are_asked_for_at_a_time_than_the_socket_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three requests of this size fit."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)  # which bounds the starts at a time
    parents: list[int] = []
    async with Gateway(config(env={"BIG": "x" * 60_000})) as gateway, leases(gateway, 1) as (first,):
        server = (await ask(first, "draw"))[2]
        async with anyio.create_task_group() as tasks:
            for number in range(16):
                tasks.start_soon(lease, gateway, number, parents)
    assert parents == [server] * 16 and server != os.getpid()


async def test_requests_that_wait_for_room_are_spawned_where_the_fork_server_dies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    parents: list[int] = []
    async with Gateway(config(env={"BIG": "x" * 60_000})) as gateway, leases(gateway, 1) as (first,):
        server = (await ask(first, "draw"))[2]
        os.kill(server, signal.SIGSTOP)
        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(lease, gateway, number, parents)
            await anyio.wait_all_tasks_blocked()
            os.kill(server, signal.SIGKILL)
    assert parents == [os.getpid()] * 6


async def lease(gateway: Gateway, number: int, parents: list[int]) -> None:
    async with gateway.lease(trajectory=f"s{number}", task=None, seed=number) as session:
        parents.append((await ask(session, "draw"))[2])
