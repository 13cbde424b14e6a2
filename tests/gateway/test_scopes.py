"""Process scope under pressure: maxima, reuse, limits, directories of a lease, and nothing left behind."""

import json
import os
import platform
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from mcp_rollout import ConfigError, Gateway, GatewayConfig, Session
from mcp_rollout.gateway.errors import DeliveryUnknown, LeaseTimeout
from mcp_rollout.gateway.leases.slots import Slots

pytestmark = pytest.mark.anyio
Entry = Callable[..., dict[str, Any]]
Config = Callable[..., GatewayConfig]


def lease(gate: Gateway, trajectory: str = "t", task: str | None = "task", tools: Any = None) -> Any:
    return gate.lease(trajectory=trajectory, task=task, seed=3, tools=tools)


async def text(session: Any, tool: str, **arguments: Any) -> str:
    return (await session.call(tool, arguments)).text


@asynccontextmanager
async def ended(*pids: int) -> AsyncIterator[None]:
    """On leaving: all of these processes have ended, or end within five seconds."""
    handles = [os.pidfd_open(pid) for pid in pids]
    try:
        yield
        with anyio.fail_after(20):
            for handle in handles:
                await anyio.wait_readable(handle)
    finally:
        for handle in handles:
            os.close(handle)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def gone(path: Path) -> None:
    with anyio.fail_after(20):
        while os.path.exists(path):  # noqa: ASYNC110, ASYNC240  # another process removes it
            await anyio.sleep(0.01)


async def test_a_lease_waits_while_all_processes_are_in_use(mini: Entry, config: Config) -> None:
    entry = mini("pid", scope="process", max_processes=2)
    async with Gateway(config(world=entry, lease_timeout_s=1.5)) as gate:
        async with lease(gate, "a"), lease(gate, "b"):
            with pytest.raises(LeaseTimeout, match=r"all processes of world \(max_processes\) were in use for 1.5 s"):
                async with lease(gate, "c"):
                    pass
        async with lease(gate, "d") as session:
            assert await text(session, "pid")


def server_processes() -> int:
    """Processes of ours that serve, or are about to."""
    count = 0
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            count += parent == os.getpid() and b"mini_server" in (entry / "cmdline").read_bytes()
        except (OSError, ValueError, IndexError):
            continue
    return count


async def test_there_are_never_more_processes_than_the_maximum(mini: Entry, config: Config) -> None:
    entry = mini("pid", scope="process", max_processes=2, min_ready=2)
    before, seen = server_processes(), list[int]()
    async with Gateway(config(world=entry)) as gate:

        async def play(name: str) -> None:
            async with lease(gate, name) as session:
                assert await text(session, "pid")
                seen.append(server_processes() - before)

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(play, str(number))
    assert len(seen) == 8 and max(seen) == 2


async def test_sessions_that_need_two_limited_servers_in_either_order_do_not_block_each_other(
    mini: Entry, config: Config
) -> None:
    servers = {name: mini("echo", "pid", scope="process", max_processes=1) for name in ("one", "two")}
    played: list[str] = []
    async with Gateway(config(**servers, lease_timeout_s=60)) as gate:

        async def play(name: str, tools: tuple[str, ...] | None) -> None:
            async with lease(gate, name, tools=tools) as session:
                for tool in session.tools:
                    if tool.endswith("pid"):
                        await session.call(tool, {})
            played.append(name)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for number in range(9):
                    tasks.start_soon(play, str(number), (None, ("one__pid",), ("two__pid",))[number % 3])
    assert len(played) == 9


async def test_places_are_granted_in_turn_and_only_together() -> None:
    places, order = Slots({"a": 1, "b": 1}), list[str]()

    async def want(name: str, *needs: str) -> None:
        await places.acquire(frozenset(needs))
        order.append(name)

    await places.acquire(frozenset({"a"}))
    async with anyio.create_task_group() as tasks:
        for name, needs in (("both", ("a", "b")), ("late b", ("b",)), ("free", ("c",))):
            tasks.start_soon(want, name, *needs)
            await anyio.wait_all_tasks_blocked()
        assert order == ["free"]  # b is free, but a lease that waits for both would starve
        places.release(frozenset({"a"}))
        await anyio.wait_all_tasks_blocked()
        assert order == ["free", "both"]
        places.release(frozenset({"a", "b"}))
    assert order == ["free", "both", "late b"]


async def test_a_full_pool_delays_no_session_that_does_not_need_it() -> None:
    slots = Slots({"": 2, "pool": 1}, common="")
    await slots.acquire(frozenset({"", "pool"}))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slots.acquire, frozenset({"", "pool"}))
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(20):
            await slots.acquire(frozenset({""}))  # the first waiter lacks the pool alone
        late = anyio.Event()

        async def want() -> None:
            await slots.acquire(frozenset({""}))
            late.set()

        tasks.start_soon(want)
        slots.release(frozenset({"pool"}))
        slots.release(frozenset({""}))  # now the first waiter has both, before the one that came later
        await anyio.wait_all_tasks_blocked()
        assert not late.is_set()
        slots.release(frozenset({"", "pool"}))


async def test_thousands_of_waiters_are_granted_in_time_that_grows_with_their_number_alone() -> None:
    slots = Slots({"": 1, "a": 1, "b": 1}, common="")
    looks = 0
    waiting = slots._waiting  # pyright: ignore[reportPrivateUsage]

    def counted(needs: frozenset[str]) -> Any:
        nonlocal looks
        looks += 1
        return waiting(needs)

    slots._waiting = counted  # pyright: ignore[reportPrivateUsage]
    number = 4000

    async def hold(pool: str) -> None:
        await slots.acquire(frozenset({"", pool}))
        slots.release(frozenset({"", pool}))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for each in range(number):
                tasks.start_soon(hold, "ab"[each % 2])
    assert looks < 20 * number


async def test_whoever_stops_waiting_for_a_place_holds_none() -> None:
    places = Slots({"a": 1})
    await places.acquire(frozenset({"a"}))
    with anyio.move_on_after(0.01):
        await places.acquire(frozenset({"a"}))
    places.release(frozenset({"a"}))
    with anyio.fail_after(20):
        await places.acquire(frozenset({"a"}))


async def test_a_process_is_leased_again_after_a_reset_as_often_as_configured(mini: Entry, config: Config) -> None:
    entry = mini("pid", "put", "get", "reset", "unkeyed", scope="process", leases_per_process=3, max_processes=1)
    pids: list[str] = []
    async with Gateway(config(world=entry)) as gate:
        for number in range(4):
            async with lease(gate, str(number), "fresh") as session:
                pids.append(await text(session, "pid"))
    assert pids[0] == pids[1] == pids[2] != pids[3]


async def test_a_process_is_not_leased_again_after_a_call_that_went_wrong(mini: Entry, config: Config) -> None:
    entry = mini("pid", "hang", "reset", scope="process", leases_per_process=9)
    async with Gateway(config(world=entry)) as gate:
        async with lease(gate) as session:
            first = await text(session, "pid")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(session.call, "hang", {})
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
        async with lease(gate) as session:
            assert await text(session, "pid") != first


async def test_a_process_is_not_leased_again_while_a_call_of_an_earlier_lease_is_running(
    mini: Entry, config: Config
) -> None:
    entry = mini("pid", "hang", "reset", scope="process", leases_per_process=9)
    async with Gateway(config(world=entry)) as gate, anyio.create_task_group() as tasks:

        async def hang(session: Session) -> None:
            with pytest.raises(DeliveryUnknown):  # its process ends, since the call might still change the world
                await session.call("hang", {})

        async with lease(gate) as session:
            first = await text(session, "pid")
            tasks.start_soon(hang, session)
            await anyio.wait_all_tasks_blocked()
            assert await text(session, "pid") == first  # the server has read both
        async with lease(gate) as session:
            assert await text(session, "pid") != first


async def test_a_lease_without_a_reset_gets_no_used_process(mini: Entry, config: Config) -> None:
    entry = mini("pid", "reset", scope="process", leases_per_process=9, max_processes=1)
    async with Gateway(config(world=entry)) as gate:
        async with lease(gate) as session:
            first = await text(session, "pid")
        async with lease(gate, task=None) as session:
            assert await text(session, "pid") != first


async def test_a_process_without_a_reset_tool_cannot_be_leased_again(mini: Entry, config: Config) -> None:
    with pytest.raises(ConfigError, match=r"servers.world.leases_per_process: .* needs a reset tool"):
        async with Gateway(config(world=mini("pid", scope="process", leases_per_process=2))):
            pass


async def test_a_policy_reads_that_it_used_up_the_cpu_time_and_others_do_not_notice(
    mini: Entry, config: Config
) -> None:
    entry = mini("burn", "pid", scope="process", max_cpu_s=1)
    async with Gateway(config(world=entry, other=mini("echo"))) as gate, lease(gate) as session:
        result = await session.call("burn", {})
        assert result.is_error and "used up its 1 s of CPU time" in result.text
        late = await session.call("pid", {})
        assert late.is_error and "Its state is lost" in late.text
        assert await text(session, "echo", text="still here") == "still here"
        async with lease(gate, "next") as fresh:
            assert await text(fresh, "pid")


async def test_a_shared_server_that_used_up_its_limit_is_nobodys_fault(mini: Entry, config: Config) -> None:
    async with Gateway(config(world=mini("burn", max_cpu_s=1))) as gate, lease(gate) as session:
        with pytest.raises(DeliveryUnknown, match="killed by SIGXCPU"):
            await session.call("burn", {})


async def test_memory_is_limited_for_each_process(mini: Entry, config: Config) -> None:
    entry = mini("hoard", "abort", scope="process", max_memory_mb=256)
    async with Gateway(config(world=entry)) as gate, lease(gate) as session:
        assert await text(session, "hoard") == "MemoryError"
        result = await session.call("abort", {})  # what node does when it cannot allocate
        assert result.is_error and "used up its 256 MB of memory" in result.text


def template(tmp_path: Path) -> Path:
    made = tmp_path / "template"
    (made / "sub").mkdir(parents=True)
    (made / "seed.txt").write_text("seed")
    return made


async def test_servers_that_name_the_lease_directory_share_a_fresh_one(
    mini: Entry, config: Config, tmp_path: Path
) -> None:
    files = mini("write_file", "list_files", scope="process", cwd="${lease.dir}")
    shell = mini("cwd", scope="process", cwd="${lease.dir}/sub", env={"ROOT": "${lease.dir}"})
    bounds = {"lease_dir": {"template": str(template(tmp_path)), "parent": str(tmp_path)}}
    told = {"change": {"echo": {"fixed": {"text": "${lease.dir}/seed.txt"}}}}  # a path that no prompt can name
    servers = {"files": files, "shell": shell, "plain": mini("echo", tools=told)}
    made = GatewayConfig.model_validate({"servers": servers, **bounds})
    async with Gateway(made) as gate:
        async with lease(gate, "a") as one, lease(gate, "b") as other:
            assert one.lease_dir != other.lease_dir
            assert await text(one, "write_file", text="new.txt") == "written"
            assert await text(one, "list_files") == "new.txt seed.txt sub"
            assert await text(one, "cwd") == f"{one.lease_dir}/sub"
            assert await text(one, "echo") == f"{one.lease_dir}/seed.txt"
            assert await text(other, "list_files") == "seed.txt sub"
            first = one.lease_dir
        await gone(first)
        async with lease(gate, "c") as later:
            assert await text(later, "list_files") == "seed.txt sub"
    assert names(tmp_path) == ["template"]


async def test_what_a_server_made_unwritable_is_removed_all_the_same(
    mini: Entry, config: Config, tmp_path: Path
) -> None:
    source = template(tmp_path)
    (source / "sub" / "locked.txt").write_text("x")
    (source / "sub").chmod(0o500)
    entry = mini("list_files", scope="process", cwd="${lease.dir}")
    made = {"servers": {"files": entry}, "lease_dir": {"template": str(source), "parent": str(tmp_path)}}
    async with Gateway(GatewayConfig.model_validate(made)) as gate, lease(gate) as session:
        await text(session, "list_files")
    (source / "sub").chmod(0o700)
    assert names(tmp_path) == ["template"]


async def test_a_bundle_is_kept_warm_whole(mini: Entry, config: Config, tmp_path: Path) -> None:
    entries = {
        name: mini("pid", scope="process", env={"ROOT": "${lease.dir}"}, max_processes=1) for name in ("one", "two")
    }
    entries["one"]["min_ready"] = 1
    async with Gateway(config(**entries)) as gate:
        for number in range(3):
            async with lease(gate, str(number)) as session:
                assert await text(session, "one__pid") != await text(session, "two__pid")


@pytest.mark.parametrize(
    ("entry", "bounds", "said"),
    [
        ({"args": ["${lease.dir}"]}, {}, r"servers.w.scope: \${lease.dir} .* \(set scope: process\)"),
        ({"command": "${lease.dir}/x", "scope": "process"}, {}, r"servers.w: .*not expanded here \(use it in args"),
        (
            {"args": ["${lease.dir}"], "scope": "process", "leases_per_process": 2},
            {},
            "servers.w.leases_per_process: .*leave it at 1",
        ),
        (
            {"args": ["${lease.dir}"], "scope": "process"},
            {"lease_dir": {"template": "/no/such"}},
            "lease_dir.template: no such directory: /no/such",
        ),
        (
            {"tools": {"change": {"x": {"fixed": {"path": "${lease.dir}/x"}}}}},
            {},
            r"servers.w.tools.change.x.fixed: .* is known only on this machine",
        ),
        (
            {"args": ["${lease.dir}"], "scope": "process"},
            {"lease_dir": {"parent": "/proc"}},
            "lease_dir.parent: cannot make directories in /proc",
        ),
    ],
)
async def test_a_lease_directory_that_cannot_be_is_a_config_error(
    entry: dict[str, Any], bounds: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        async with Gateway(GatewayConfig.model_validate({"servers": {"w": {"command": "x", **entry}}, **bounds})):
            pass


async def test_a_daemon_that_a_server_started_ends_with_its_lease(mini: Entry, config: Config) -> None:
    async with Gateway(config(world=mini("daemon", "grandchild", scope="process"))) as gate:
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(lease(gate))
            pids = [int(await text(session, tool)) for tool in ("daemon", "grandchild")]
            async with ended(*pids):
                await stack.aclose()


WORKER = """
import json, sys, anyio
from mcp_rollout import Gateway, GatewayConfig

async def main():
    async with Gateway(GatewayConfig.model_validate(json.loads(sys.argv[1]))) as gate:
        async with gate.lease(trajectory="t", task="", seed=1) as session:
            found = [(await session.call(tool, {})).text for tool in ("pid", "grandchild", "daemon")]
            await session.call("write_file", {"text": "kept.txt"})
            print(*found, session.lease_dir, flush=True)
            await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a server only sees the end of its stdin")
@pytest.mark.parametrize("as_ray_does", [False, True])
async def test_nothing_is_left_of_a_worker_that_is_killed(mini: Entry, tmp_path: Path, as_ray_does: bool) -> None:
    """Ray kills the children of a worker before the worker."""
    worker = tmp_path / "worker.py"
    worker.write_text(textwrap.dedent(WORKER))
    parent = tmp_path / "leases"
    parent.mkdir()
    tools = ("pid", "grandchild", "daemon", "write_file", "stubborn")
    entry = mini(*tools, scope="process", min_ready=1, cwd="${lease.dir}")
    servers = json.dumps({"servers": {"world": entry}, "lease_dir": {"parent": str(parent)}})
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, str(worker), servers], stdout=subprocess.PIPE, env=env, text=True
    ) as process:
        assert process.stdout is not None
        *pids, directory = process.stdout.readline().split()
        assert (Path(directory) / "kept.txt").is_file()
        async with ended(*map(int, pids)):
            for child in psutil.Process(process.pid).children() if as_ray_does else []:
                child.kill()
            process.send_signal(signal.SIGKILL)
    await gone(Path(directory))
    await gone(next(parent.iterdir(), parent / "nothing"))


async def test_directories_of_a_worker_that_died_with_its_sweeper_are_removed_by_the_next(
    mini: Entry, tmp_path: Path
) -> None:
    hosts = (platform.node(), "other", f"{platform.node()}-1")  # a name can begin with another one
    stale, *foreign = (tmp_path / f"mcp-rollout-lease-{host}-abcdefgh" for host in hosts)
    for path in (stale, *foreign):
        (path / "lease-1").mkdir(parents=True)
        (path / ".lock").touch()
    entry = mini("pid", scope="process", cwd="${lease.dir}")
    made = GatewayConfig.model_validate({"servers": {"w": entry}, "lease_dir": {"parent": str(tmp_path)}})
    async with Gateway(made), Gateway(made) as gate, lease(gate) as session:
        assert await text(session, "pid")
        assert not stale.exists() and all(path.exists() for path in foreign)
    assert names(tmp_path) == sorted(path.name for path in foreign)
