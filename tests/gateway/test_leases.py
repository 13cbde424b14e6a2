"""A lease is a world for one trajectory: given when there is a place, kept apart from the others, always given back."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
from mcp.server.mcpserver import Context, MCPServer

from mcp_rollout import Gateway, GatewayConfig, Session
from mcp_rollout.gateway.errors import HarnessError, LeaseTimeout, ServerUnavailable
from mcp_rollout.gateway.types import Role

pytestmark = pytest.mark.anyio
Entry = Callable[..., dict[str, Any]]
Config = Callable[..., GatewayConfig]


def keyed_world() -> tuple[MCPServer, dict[str, str]]:
    """A shared server that keeps its state by trajectory, as ours do, and that state."""
    server, states = MCPServer("world"), dict[str, str]()

    def trajectory(ctx: Context) -> str:
        return (ctx.request_context.meta or {})["mcp-rollout/trajectory"]

    @server.tool(meta={"mcp-rollout/role": "reset"})
    def reset(task: str, seed: int, ctx: Context) -> dict[str, Any]:
        """Reset."""
        states[trajectory(ctx)] = f"{task}/{seed}"
        return {}

    @server.tool(meta={"mcp-rollout/role": "release"})
    def release(ctx: Context) -> dict[str, Any]:
        """Release."""
        del states[trajectory(ctx)]
        return {}

    @server.tool()
    def put(text: str, ctx: Context) -> str:
        """Put."""
        states[trajectory(ctx)] = text
        return "stored"

    @server.tool()
    def get(ctx: Context) -> str:
        """Get."""
        return states[trajectory(ctx)]

    return server, states


def gateway(server: MCPServer, **bounds: Any) -> Gateway:
    config = GatewayConfig.model_validate({"servers": {"world": {"factory": "unused:unused"}}, **bounds})
    return Gateway(config, connect=lambda _, __: server)


def lease(gate: Gateway, trajectory: str = "t", task: str | None = "task") -> Any:
    return gate.lease(trajectory=trajectory, task=task, seed=3)


async def test_a_lease_resets_the_world_to_the_task_and_releases_it_after() -> None:
    server, states = keyed_world()
    async with gateway(server) as gate:
        async with lease(gate, "a", "buy a ball") as session:
            assert (await session.call("get", {})).text == "buy a ball/3"
        assert states == {}


async def test_a_lease_without_a_task_resets_nothing() -> None:
    server, states = keyed_world()
    states["a"] = "as it was"
    async with gateway(server) as gate, lease(gate, "a", None) as session:
        assert (await session.call("get", {})).text == "as it was"


async def test_a_session_is_of_no_use_after_its_lease() -> None:
    server, states = keyed_world()
    async with gateway(server) as gate:
        async with lease(gate) as session:
            pass
        with pytest.raises(ServerUnavailable, match="the lease has ended"):
            await session.call("put", {"text": "late"})
    assert states == {}


async def test_leases_of_a_shared_server_that_keys_its_state_do_not_see_each_other() -> None:
    server, _ = keyed_world()
    async with gateway(server) as gate, lease(gate, "a") as one, lease(gate, "b") as other:
        await one.call("put", {"text": "written by a"})
        assert (await other.call("get", {})).text == "task/3"
        assert (await one.call("get", {})).text == "written by a"


@pytest.mark.parametrize("scope", ["session", "process"])
async def test_leases_of_an_in_process_server_get_servers_of_their_own(scope: str) -> None:
    made: list[dict[str, str]] = []

    def connect(_: Any, __: str) -> MCPServer:
        server, states = keyed_world()
        made.append(states)
        return server

    config = GatewayConfig.model_validate({"servers": {"world": {"factory": "unused:unused", "scope": scope}}})
    async with Gateway(config, connect=connect) as gate, lease(gate, "same") as one, lease(gate, "same") as other:
        await one.call("put", {"text": "written by one"})
        assert (await other.call("get", {})).text == "task/3"
        assert len(made) == 2


async def test_leases_under_process_scope_are_processes_that_share_nothing(mini: Entry, config: Config) -> None:
    entry = mini("put", "get", "pid", "unkeyed", scope="process")
    async with Gateway(config(world=entry)) as gate:
        async with lease(gate, "a") as one, lease(gate, "b") as other:
            await one.call("put", {"text": "written by a"})
            assert (await other.call("get", {})).text == "nothing"
            pids = {(await session.call("pid", {})).text for session in (one, other)}
        async with lease(gate, "c") as later:
            assert (await later.call("get", {})).text == "nothing"
            pids.add((await later.call("pid", {})).text)
    assert len(pids) == 3


async def test_under_shared_scope_an_unkeyed_server_leaks_which_is_why_scopes_exist(
    mini: Entry, config: Config
) -> None:
    async with Gateway(config(world=mini("put", "get", "unkeyed"))) as gate:
        async with lease(gate, "a") as one, lease(gate, "b") as other:
            await one.call("put", {"text": "written by a"})
            assert (await other.call("get", {})).text == "written by a"


async def test_warm_processes_are_started_before_anybody_asks_and_never_leased_twice(
    mini: Entry, config: Config, tmp_path: Path
) -> None:
    # Every process of this server writes its pid into the fifo when it starts.
    fifo = str(tmp_path / "started")
    os.mkfifo(fifo)
    announced = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    pids: list[str] = []

    async def started(count: int) -> list[str]:
        while len(pids) < count:
            await anyio.wait_readable(announced)
            pids.extend(os.read(announced, 4096).decode().split())
        return pids

    entry = mini("pid", scope="process", min_ready=2, env={"STARTED": fifo})
    with anyio.fail_after(10):
        async with Gateway(config(world=entry)) as gate:
            await started(2)
            used: list[str] = []
            for _ in range(3):
                async with lease(gate) as session:
                    used.append((await session.call("pid", {})).text)
            # Two more than were ever leased: the stock is kept up.
            assert set(used) < set(await started(5)) and len(set(used)) == 3
    os.close(announced)


async def test_a_place_that_is_taken_is_waited_for_no_longer_than_configured() -> None:
    server, _ = keyed_world()
    async with gateway(server, max_sessions=1, lease_timeout_s=0.05) as gate:
        async with lease(gate, "a"):
            with pytest.raises(LeaseTimeout, match=r"all 1 sessions were in use for 0.05 s"):
                async with lease(gate, "b"):
                    pass
        async with lease(gate, "c"):
            pass


async def test_a_waiting_lease_is_granted_when_a_place_becomes_free() -> None:
    server, _ = keyed_world()
    async with gateway(server, max_sessions=1) as gate, anyio.create_task_group() as tasks:
        granted = anyio.Event()

        async def wait() -> None:
            async with lease(gate, "b"):
                granted.set()

        async with lease(gate, "a"):
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert not granted.is_set()
        with anyio.fail_after(20):
            await granted.wait()


async def test_a_limit_that_a_lease_waits_for_is_named_once() -> None:
    server, _ = keyed_world()
    with structlog.testing.capture_logs() as logs:
        async with gateway(server, max_sessions=1) as gate, anyio.create_task_group() as tasks:

            async def wait(trajectory: str) -> None:
                async with lease(gate, trajectory):
                    pass

            async with lease(gate, "a"):
                assert not [line for line in logs if line["event"] == "lease.waiting"]
                for trajectory in ("b", "c"):
                    tasks.start_soon(wait, trajectory)
                await anyio.wait_all_tasks_blocked()
    (named,) = [line for line in logs if line["event"] == "lease.waiting"]
    assert (named["limit"], named["most"]) == ("max_sessions", 1)


async def test_a_cancelled_trajectory_releases_its_world_and_its_place() -> None:
    server, states = keyed_world()

    @server.tool()
    async def hang() -> str:
        """Hang."""
        scope.cancel()
        await anyio.sleep_forever()
        return ""

    async with gateway(server, max_sessions=1) as gate:
        with anyio.CancelScope() as scope:
            async with lease(gate, "a") as session:
                await session.call("hang", {})
        assert scope.cancelled_caught and states == {}
        with anyio.fail_after(20):
            async with lease(gate, "b"):
                assert list(states) == ["b"]


async def test_a_trajectory_that_raises_releases_its_world_and_keeps_its_exception() -> None:
    server, states = keyed_world()
    async with gateway(server) as gate:
        with pytest.raises(KeyError, match="mine"):
            async with lease(gate):
                raise KeyError("mine")
    assert states == {}


async def test_a_refused_reset_is_a_harness_error_and_frees_the_place() -> None:
    server = MCPServer("world")

    @server.tool(meta={"mcp-rollout/role": "reset"})
    def reset(task: str, seed: int) -> dict[str, Any]:
        """Reset."""
        if task == "bad":
            raise ValueError("no such task")
        return {}

    async with gateway(server, max_sessions=1) as gate:
        with pytest.raises(HarnessError, match="reset was refused"):
            async with lease(gate, "a", "bad"):
                pass
        async with lease(gate, "b", "good"):
            pass


async def test_a_release_that_hangs_is_bounded() -> None:
    server = MCPServer("world")

    @server.tool(meta={"mcp-rollout/role": "release"})
    async def release() -> dict[str, Any]:
        """Release."""
        await anyio.sleep_forever()
        return {}

    with anyio.fail_after(20):
        async with gateway(server, release_timeout_s=0.05) as gate, lease(gate):
            pass


async def test_a_gateway_held_by_one_task_serves_leases_of_others() -> None:
    server, states = keyed_world()
    up, down = asyncio.Event(), asyncio.Event()
    gate = gateway(server)

    async def hold() -> None:
        async with gate:
            up.set()
            await down.wait()

    async def play(number: int) -> str:
        async with lease(gate, f"t{number}") as session:
            await session.call("put", {"text": str(number)})
            return (await session.call("get", {})).text

    holder = asyncio.create_task(hold())
    await up.wait()
    assert await asyncio.gather(*(play(number) for number in range(20))) == [str(number) for number in range(20)]
    down.set()
    await holder
    assert states == {}


async def test_a_lease_may_be_left_in_another_task_than_entered_it() -> None:
    server, states = keyed_world()
    async with gateway(server) as gate:
        block = lease(gate)
        session: Session = await asyncio.create_task(block.__aenter__())
        assert (await session.call("get", {})).text == "task/3"
        await asyncio.create_task(block.__aexit__(None, None, None))
    assert states == {}


async def test_roles_can_be_given_to_tools_of_a_foreign_server(mini: Entry, config: Config) -> None:
    entry = mini("foreign_reset", "echo", roles={"reset": "foreign_reset"})
    async with Gateway(config(world=entry)) as gate, lease(gate) as session:
        assert session.has(Role.RESET, "world")
        assert list(session.tools) == ["echo"]


async def test_a_foreign_answer_may_be_json_text(mini: Entry, config: Config) -> None:
    async with Gateway(config(world=mini("score"))) as gate, lease(gate) as session:
        scored = await session.invoke(Role.SCORE, {"messages": []}, server="world")
        assert scored.structured == {"score": 0.25, "parts": {"found": 1.0}}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


async def test_no_process_is_left_when_the_gateway_closes(mini: Entry, config: Config) -> None:
    servers = {
        "shared": mini("pid", "grandchild"),
        "pooled": mini("pid", "grandchild", scope="process", min_ready=1),
        "stubborn": mini("pid", "stubborn", close_timeout_s=0.4),
    }
    pids: list[int] = []
    async with Gateway(config(**servers)) as gate, lease(gate) as session:
        pids += [int((await session.call(name, {})).text) for name in session.tools]
    assert len(pids) == 5
    assert [pid for pid in pids if alive(pid)] == []
