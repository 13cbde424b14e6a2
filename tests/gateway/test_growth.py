"""What grows with the number of tools, sessions and processes is counted: lines that run, bytes, looks at processes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.server.mcpserver import MCPServer
from serving import serving

from mcp_rollout import Gateway, GatewayConfig, Session
from mcp_rollout.gateway.leases import sweeper
from mcp_rollout.mcp_servers.kit import Harness, InProcess

pytestmark = pytest.mark.anyio
OURS = str(Path(sweeper.__file__).parents[1])
FORKED = Path(__file__).with_name("forking_server.py")


@contextmanager
def counted() -> Iterator[list[int]]:
    """Lines of the gateway's own code that run within the block; each round of a loop counts."""
    lines = [0]

    def trace(frame: Any, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        lines[0] += event == "line"
        return trace

    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(None)


def server_with(tools: int) -> MCPServer:
    server = MCPServer("many", log_level="ERROR")
    for number in range(tools):
        server.add_tool(lambda n: n, name=f"tool_{number}", description="Says a number.")
    return server


def gateway_of(server: MCPServer | InProcess, *, max_sessions: int) -> Gateway:
    entry = {"factory": "unused:unused", "required": True}
    config = GatewayConfig.model_validate({"servers": {"many": entry}, "max_sessions": max_sessions})
    return Gateway(config, connect=lambda _, __: server)


async def work(tools: int, sessions: int = 1) -> tuple[float, float, float]:
    """Lines for a start, and on average for a lease and for a call of a tool."""
    with counted() as start:
        opened = gateway_of(server_with(tools), max_sessions=sessions + 1)
        await opened.__aenter__()
    held = [opened.lease(trajectory=f"t{number}", task=None, seed=number) for number in range(sessions)]
    async with opened.lease(trajectory="first", task=None, seed=0) as first:
        await first.call("tool_0", {"n": 1})  # compiles
        with counted() as lease:
            leased = [await each.__aenter__() for each in held]
        with counted() as call:
            for session in leased:
                await session.call("tool_0", {"n": 1})
        for each in reversed(held):
            await each.__aexit__(None, None, None)
    await opened.__aexit__(None, None, None)
    return start[0], lease[0] / sessions, call[0] / sessions


async def test_with_a_thousand_tools_a_start_and_a_lease_grow_with_their_number_and_a_call_does_not() -> None:
    few, many = await work(100), await work(1000)
    assert min(*few, *many) > 20
    assert many[0] < 11 * few[0]
    assert many[1] < 11 * few[1]
    assert many[2] <= few[2] + 5


@pytest.mark.parametrize("sessions", [1024, pytest.param(16_384, marks=pytest.mark.full)])
async def test_a_lease_and_a_call_cost_the_same_however_many_sessions_there_are(sessions: int) -> None:
    few, many = await work(2, 16), await work(2, sessions)
    assert many[1] <= 1.2 * few[1] + 5
    assert many[2] <= 1.2 * few[2] + 5


async def waiting(leases: int) -> float:
    """Lines for a lease, on average, where all but two of them wait."""

    async def play(opened: Gateway, number: int) -> None:
        async with opened.lease(trajectory=f"t{number}", task=None, seed=number):
            await anyio.lowlevel.checkpoint()

    async with gateway_of(server_with(2), max_sessions=2) as opened:
        with counted() as lines:
            async with anyio.create_task_group() as tasks:
                for number in range(leases):
                    tasks.start_soon(play, opened, number)
    return lines[0] / leases


@pytest.mark.parametrize("leases", [2048, pytest.param(16_384, marks=pytest.mark.full)])
async def test_a_lease_costs_the_same_however_many_wait_for_one(leases: int) -> None:
    few = await waiting(64)
    assert 50 < await waiting(leases) <= 1.2 * few


async def in_flight(calls: int) -> float:
    """Lines for a call over HTTP, on average, where all are in flight together."""
    server, arrived, all_arrived = MCPServer("many", log_level="ERROR"), 0, anyio.Event()

    @server.tool()
    async def meet() -> str:
        """Answer once all calls have arrived."""
        nonlocal arrived
        arrived += 1
        if arrived == calls:
            all_arrived.set()
        await all_arrived.wait()
        return "met"

    async def call(session: Session) -> None:
        assert (await session.call("meet", {})).text == "met"

    async with serving(server, "http") as entry:
        config = GatewayConfig.model_validate({"servers": {"many": entry}})
        async with Gateway(config) as opened, opened.lease(trajectory="t", task=None, seed=0) as session:
            with counted() as lines:
                async with anyio.create_task_group() as tasks:
                    for _ in range(calls):
                        tasks.start_soon(call, session)
    return lines[0] / calls


async def test_a_call_over_http_costs_the_same_however_many_are_in_flight() -> None:
    few, many = await in_flight(16), await in_flight(400)
    assert 100 < many <= 1.2 * few


class Names(list[str]):
    """Names of tools that count how many of them are compared with another name."""

    compared = 0

    def __contains__(self, name: object) -> bool:
        self.compared += len(self)
        return super().__contains__(name)


async def test_naming_each_of_a_thousand_tools_compares_none_with_all_others() -> None:
    names = Names(f"tool_{number}" for number in range(1000))
    later = Names(names[900:])
    async with gateway_of(server_with(1000), max_sessions=2) as opened:
        async with opened.lease(trajectory="t", task=None, seed=0, tools=names, later_tools=later) as session:
            assert len(session.tools) == 900 and len(session.later_tools) == 100
    assert names.compared == later.compared == 0


async def held_bytes(opened: Gateway, sessions: int, **request: Any) -> float:
    """Bytes that a session holds while it is idle, on average."""

    async def leased(number: int) -> Any:
        lease = opened.lease(trajectory=f"t{number}", seed=number, **{"task": None, **request})
        await lease.__aenter__()
        return lease

    async with opened:
        held = [await leased(0)]  # what the first one compiles stays
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            held += [await leased(number) for number in range(1, sessions + 1)]
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        for lease in reversed(held):
            await lease.__aexit__(None, None, None)
    return grown / sessions


@pytest.mark.parametrize("is_named", [False, True])
async def test_an_idle_session_keeps_no_definitions_of_its_own(is_named: bool) -> None:
    request: dict[str, Any] = {"tools": [f"tool_{number}" for number in range(1000)]} if is_named else {}
    found = await held_bytes(gateway_of(server_with(1000), max_sessions=65), 64, **request)
    assert 1000 < found < 10_000


async def test_an_idle_session_takes_less_than_20_kb_with_its_world() -> None:
    server = MCPServer("world", log_level="ERROR")
    Harness(server, lambda task, seed: [task, seed], max_trajectories=200)
    found = await held_bytes(gateway_of(InProcess(server), max_sessions=129), 128, task="t")
    assert 2000 < found < 20_000


async def test_connections_with_equal_listings_share_the_definitions(mini: Callable[..., dict[str, Any]]) -> None:
    config = GatewayConfig.model_validate({"servers": {"world": mini("pid", "put", scope="process")}})
    async with Gateway(config) as opened:
        async with (
            opened.lease(trajectory="a", task=None, seed=0) as one,
            opened.lease(trajectory="b", task=None, seed=0) as other,
        ):
            both = one.connection("world").tools, other.connection("world").tools
    assert both[0] and all(first is second for first, second in zip(*both, strict=True))


async def forked(processes: int) -> tuple[float, float, float]:
    """Lines for a fork, for a call of it and for its end, on average, where all of them are held together."""
    entry = {"command": sys.executable, "args": [str(FORKED)], "scope": "process", "start": "fork", "required": True}
    config = GatewayConfig.model_validate({"servers": {"world": entry}, "max_sessions": processes})
    opened = Gateway(config)
    await opened.__aenter__()
    for _ in range(2):  # the first process is spawned, and the second one starts the fork server
        async with opened.lease(trajectory="before", task=None, seed=0):
            pass
    assert not opened.spawned
    held = [opened.lease(trajectory=f"t{number}", task=None, seed=number) for number in range(processes)]
    with counted() as start:
        sessions = [await lease.__aenter__() for lease in held]
    with counted() as call:
        found = {(await session.call("draw", {})).text for session in sessions}
    with counted() as end:  # of the gateway, too: processes end after their leases
        for lease in reversed(held):
            await lease.__aexit__(None, None, None)
        await opened.__aexit__(None, None, None)
    assert len(found) == processes
    return start[0] / processes, call[0] / processes, end[0] / processes


@pytest.mark.skipif(sys.platform != "linux", reason="forks need Linux")
@pytest.mark.parametrize("processes", [100, pytest.param(1000, marks=[pytest.mark.full, pytest.mark.timeout(600)])])
async def test_a_forked_process_costs_the_same_however_many_there_are(processes: int) -> None:
    few, many = await forked(20), await forked(processes)
    assert all(50 < more <= 1.02 * less + 5 for less, more in zip(few, many, strict=True))


COUNTING = f"""
import sys
sys.path.insert(0, {str(Path(sweeper.__file__).parent)!r})
import sweeper
looks, kill_if_marked, end = 0, sweeper.kill_if_marked, sweeper.end
def counting(pid, is_ended):
    global looks
    looks += 1
    return kill_if_marked(pid, is_ended)
sweeper.kill_if_marked = counting
sweeper.main()
print(looks)
"""


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="leftovers are found through /proc")
async def test_a_thousand_connections_that_end_together_are_swept_with_a_few_looks_at_each_process() -> None:
    argv = [sys.executable, "-I", "-S", "-c", COUNTING, str(os.getpid()), "no-such-token"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: ASYNC220
        said, _ = process.communicate(b"".join(b"no-such-token-%d\n" % number for number in range(1000)), timeout=60)
    processes = sum(name.isdigit() for name in os.listdir("/proc"))
    assert 0 < int(said) <= 10 * (processes + 100)
