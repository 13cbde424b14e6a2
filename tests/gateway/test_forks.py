"""Forks in place of spawned processes: what they share, what they must not, and how each part of them may break."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from forking import SERVER, ask, config, leases

from lab.benchmarks.server_programs import sweepers_of
from mcp_rollout import Gateway, GatewayError
from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.errors import WorldLost
from mcp_rollout.gateway.transport.forked_process import ForkedProcess, close_streams, open_streams
from mcp_rollout.gateway.transport.python_program import python_program

pytestmark = pytest.mark.anyio


async def test_forks_have_state_and_random_numbers_of_their_own_and_one_parent() -> None:
    async with Gateway(config()) as gateway, leases(gateway, 3) as sessions:
        for number, session in enumerate(sessions):
            assert await ask(session, "put", text=str(number)) == [str(number)]
        drawn = [await ask(session, "draw") for session in sessions]
        assert len({number for number, _, _ in drawn}) == len({pid for _, pid, _ in drawn}) == 3
        parents = {parent for _, _, parent in drawn}
        assert len(parents) == 1 and parents != {os.getpid()} and not gateway.spawned


@pytest.mark.parametrize("varying", [False, True])
async def test_a_fork_is_what_a_spawned_process_is(varying: bool, tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    for start in ("spawn", "fork"):
        entry: dict[str, Any] = {"env": {"WORD": "x"}, "max_memory_mb": 500, "max_cpu_s": 50, "cwd": str(tmp_path)}
        if varying:
            entry |= {"args": [str(SERVER), "${lease.dir}"], "cwd": "${lease.dir}", "env": {"WORD": "${lease.dir}"}}
        async with Gateway(config(start, **entry)) as gateway, leases(gateway, 1) as (session,):
            assert not gateway.spawned
            found[start] = await ask(session, "facts")
            if varying:
                place = found[start]["cwd"]
                assert found[start]["argv"] == [place] and found[start]["env"]["WORD"] == place
                found[start] |= {"argv": [], "cwd": "", "env": {**found[start]["env"], "WORD": ""}}
    assert found["fork"] == found["spawn"]


async def test_each_fork_bears_the_mark_of_its_own_lease_where_the_sweeper_reads_it() -> None:
    async with Gateway(config()) as gateway, leases(gateway, 2) as sessions:
        marks = [await ask(session, "owner") for session in sessions]
        assert len(set(marks)) == 2 and len({mark.partition(".")[0] for mark in marks}) == 1


async def test_what_a_fork_started_ends_with_its_lease() -> None:
    async with Gateway(config()) as gateway:
        async with leases(gateway, 1) as (session,):
            child = await ask(session, "child")
            pid = (await ask(session, "draw"))[1]
        await gone(child, pid)


@pytest.mark.parametrize(
    ("tool", "words"), [("exit", "exited with status 3; stderr ends: last words"), ("kill", "killed by SIGKILL")]
)
async def test_a_fork_that_dies_takes_no_other_with_it(tool: str, words: str) -> None:
    async with Gateway(config()) as gateway, leases(gateway, 2) as (one, other):
        with pytest.raises(GatewayError, match=words):
            await one.call(tool, {})
        assert await ask(other, "put", text="x") == ["x"]
        async with leases(gateway, 1) as (further,):
            assert (await ask(further, "draw"))[2] == (await ask(other, "draw"))[2]


async def test_the_death_of_the_fork_server_ends_no_fork_and_later_processes_are_spawned() -> None:
    async with Gateway(config()) as gateway, leases(gateway, 2) as (one, other):
        _, pid, server = await ask(one, "draw")
        os.kill(server, signal.SIGKILL)
        await gone(server)
        assert await ask(one, "put", text="x") == ["x"] and await ask(other, "put", text="y") == ["y"]
        async with leases(gateway, 1) as (further,):
            assert (await ask(further, "draw"))[2] == os.getpid()
        # Its world is gone, and nobody else can say how: it is rolled out again, as one whose process was killed.
        with pytest.raises(WorldLost, match="the server ended after its fork server"):
            await one.call("kill", {})
        await gone(pid)


def test_the_death_of_the_fork_server_is_noticed_on_a_plain_asyncio_loop() -> None:
    """As that of a worker of verl, where a callback of the loop is not known to run under asyncio."""
    problems: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
        await test_the_death_of_the_fork_server_ends_no_fork_and_later_processes_are_spawned()

    asyncio.run(watched())
    assert problems == []


async def test_a_program_with_threads_is_spawned() -> None:
    async with Gateway(config(env={"BEFORE": "thread"})) as gateway, leases(gateway, 1) as (session,):
        assert (await ask(session, "draw"))[2] == os.getpid()
        assert gateway.spawned["world"] == "it starts 1 threads before it serves"


@pytest.mark.parametrize("changed", ["args", "env"])
async def test_where_leases_differ_each_fork_runs_the_main_module(changed: str, tmp_path: Path) -> None:
    """Forked elsewhere, it would have read another lease's, or none."""
    shutil.copy(SERVER, tmp_path)
    (tmp_path / "begin.py").write_text(READS)
    entry: dict[str, Any] = {"args": [str(tmp_path / "begin.py")], "env": {}}
    entry[changed] = [*entry["args"], "${lease.dir}"] if changed == "args" else {"PLACE": "${lease.dir}"}
    async with Gateway(config(**entry)) as gateway, leases(gateway, 2) as sessions:
        assert not gateway.spawned
        for session in sessions:
            assert await ask(session, "made") == [str(session.lease_dir), 1]


async def test_a_module_that_is_looked_for_in_the_directory_of_a_lease_is_spawned() -> None:
    entry: dict[str, Any] = {"cwd": "${lease.dir}", "env": {"PYTHONPATH": str(SERVER.parent)}}
    async with Gateway(config(args=["-m", "forking_server"], **entry)) as gateway, leases(gateway, 1) as (session,):
        assert (await ask(session, "draw"))[2] == os.getpid()
        assert gateway.spawned["world"] == "its program differs between leases"


@pytest.mark.parametrize("by_name", [False, True])
async def test_a_fork_keeps_what_its_program_changed(by_name: bool, tmp_path: Path) -> None:
    shutil.copy(SERVER, tmp_path)
    (tmp_path / "begin.py").write_text(CHANGES)
    args = ["-m", "begin"] if by_name else [str(tmp_path / "begin.py")]
    env = {"CHANGED": "a", "REMOVED": "b", "PYTHONPATH": str(tmp_path)}
    found: dict[str, Any] = {}
    for start in ("spawn", "fork"):
        entry: dict[str, Any] = {"args": [*args, "--once", "--kept"], "env": env, "cwd": str(tmp_path.parent)}
        async with Gateway(config(start, **entry)) as gateway, leases(gateway, 1) as (session,):
            assert not gateway.spawned
            found[start] = await ask(session, "facts")
    assert found["fork"] == found["spawn"]
    facts = found["fork"]
    assert facts["argv"] == ["--kept"] and facts["cwd"] == str(tmp_path) and "function" in facts["signals"]
    assert (facts["env"]["ADDED"], facts["env"]["CHANGED"]) == ("1", "1") and "REMOVED" not in facts["env"]


async def test_more_forks_are_asked_for_at_a_time_than_the_socket_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three requests of this size fit."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)  # which bounds the starts at a time
    parents: list[int] = []
    async with Gateway(config(env={"BIG": "${lease.dir}" + "x" * 60_000})) as gateway, leases(gateway, 1) as (first,):
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
    async with Gateway(config(env={"BIG": "${lease.dir}" + "x" * 60_000})) as gateway, leases(gateway, 1) as (first,):
        server = (await ask(first, "draw"))[2]
        os.kill(server, signal.SIGSTOP)
        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(lease, gateway, number, parents)
            await anyio.wait_all_tasks_blocked()
            os.kill(server, signal.SIGKILL)
    assert parents == [os.getpid()] * 6


async def test_numpy_is_seeded_again_in_each_fork(tmp_path: Path) -> None:
    shutil.copy(SERVER, tmp_path)
    (tmp_path / "begin.py").write_text(DRAWS)
    entry: dict[str, Any] = {"args": [str(tmp_path / "begin.py")], "env": {"OPENBLAS_NUM_THREADS": "1"}}
    async with Gateway(config(**entry)) as gateway, leases(gateway, 2) as sessions:
        assert not gateway.spawned
        assert len({await ask(session, "draw") for session in sessions}) == 2


async def test_a_server_without_an_event_loop_is_spawned(mini: Any) -> None:
    async with Gateway(config(**mini("pid"))) as gateway, leases(gateway, 2) as sessions:
        assert gateway.spawned["world"] == "it makes no asyncio event loop"
        assert len({(await session.call("pid", {})).text for session in sessions}) == 2


@pytest.mark.parametrize("first", ["nothing", "fork server"])
async def test_no_fork_outlives_a_worker_that_is_killed_with_its_sweeper(first: str) -> None:
    """The forks leave neither a sweeper that finds them nor, in the second case, a parent: the kernel ends them."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    async with await anyio.open_process([sys.executable, "-c", WORKER], env=env, stderr=None) as worker:
        assert worker.stdout is not None
        try:
            fork, server = json.loads(await worker.stdout.receive())
            (sweeper,) = sweepers_of(worker.pid)
            assert fork not in children_of(worker.pid)
            for pid in [sweeper, *([server] if first == "fork server" else [])]:
                os.kill(pid, signal.SIGKILL)
        finally:
            worker.kill()
        await gone(fork, server)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["-m", "shop", "--flag"], (["-m", "shop"], 2)),
        (["-I", "-X", "utf8", "-m", "shop"], (["-m", "shop"], 5)),
        (["server.py", "-m", "x"], (["server.py"], 1)),
        (["-c", "print()"], None),
        (["-Im", "shop"], None),
        (["-m"], None),
        ([], None),
    ],
)
async def test_the_main_module_of_an_interpreter(args: list[str], expected: tuple[list[str], int] | None) -> None:
    found = python_program(ServerConfig(command=sys.executable, args=tuple(args)), os.environ)
    assert (found and (list(found.main), found.skipped)) == expected


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"scope": "shared"}, "start needs scope: process"),
        ({"command": None, "factory": "a:b"}, "start: fork needs a command"),
    ],
)
async def test_only_processes_of_a_command_are_forked(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ServerConfig.model_validate({"command": "x", "scope": "process", "start": "fork", **entry})


async def test_a_start_that_is_cancelled_while_its_streams_are_connected_leaves_none_open() -> None:
    for iterations in range(8):
        ours, theirs = open_streams()
        opened = {os.readlink(f"/proc/self/fd/{each}") for each in (ours[0].fileno(), *ours[1:])}
        process = ForkedProcess(os.getpid(), os.pidfd_open(os.getpid()), asyncio.SubprocessProtocol())
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(process.connect, ours)
                for _ in range(iterations):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
        process.close()
        close_streams(theirs)
        with anyio.fail_after(20):
            while opened & open_files():
                await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("spare", [3, 5])  # of the six that it needs
def test_streams_for_which_descriptors_run_out_are_closed(spare: int) -> None:
    before = open_files()
    used = {int(each) for each in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{each}")}
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [number for number in range(max(used) + 10) if number not in used]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[spare], limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            open_streams()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert open_files() <= before


async def lease(gateway: Gateway, number: int, parents: list[int]) -> None:
    async with gateway.lease(trajectory=f"s{number}", task=None, seed=number) as session:
        parents.append((await ask(session, "draw"))[2])


def open_files() -> set[str]:
    found: set[str] = set()
    for each in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            found.add(os.readlink(f"/proc/self/fd/{each}"))
    return found


async def gone(*pids: int) -> None:
    with anyio.fail_after(20):
        while any(_runs(pid) for pid in pids):
            await anyio.lowlevel.checkpoint()


def children_of(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for children in lists for child in children.read_text().split()]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


READS = """
import asyncio
import os
import sys
import forking_server

forking_server.STATE.append(0)
if __name__ == "__main__":
    forking_server.MADE = [os.environ.get("PLACE") or sys.argv[1], len(forking_server.STATE) - 1]
    asyncio.run(forking_server.serve())
"""
CHANGES = """
import asyncio
import os
import signal
import sys
import forking_server

os.environ["ADDED"] = os.environ["CHANGED"] = "1"
os.environ.pop("REMOVED", None)
os.chdir(os.path.dirname(os.path.abspath(__file__)))
signal.signal(signal.SIGCHLD, lambda *_: None)
sys.argv.remove("--once")
if __name__ == "__main__":
    asyncio.run(forking_server.serve())
"""
DRAWS = """
import asyncio
import forking_server
import numpy.random

def call(name, arguments):
    return float(numpy.random.random())

forking_server.call = call
if __name__ == "__main__":
    asyncio.run(forking_server.serve())
"""
WORKER = """
import json
import anyio
from forking import ask, config, leases
from mcp_rollout import Gateway

async def main():
    async with Gateway(config()) as gateway, leases(gateway, 1) as (session,):
        _, pid, parent = await ask(session, "draw")
        print(json.dumps([pid, parent]), flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""
