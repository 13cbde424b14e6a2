"""Forks in place of spawned processes: what they share, what they must not, and how each part of them may break."""

from __future__ import annotations

import asyncio
import json
import os
import re
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

from benchmarks.server_programs import sweepers_of
from gateway import Gateway, GatewayError
from gateway.config.models import ServerConfig
from gateway.errors import WorldLost
from gateway.transport.forked_process import ForkedProcess, close_streams, open_streams
from gateway.transport.python_program import PythonProgram, python_program

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


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("thread", "it starts 1 threads"),
        ("draws", "it draws random numbers"),
        ("writes", "it (writes|calls os.mkdir)"),
        ("open", "it keeps .*forking_server.py open"),
        ("child", "it calls subprocess.Popen"),
        ("getrandom", "it draws random numbers"),
        ("mmap", "it maps shared memory before it serves: /dev/zero"),
        ("lock", "it (writes|maps shared memory)"),
        ("value", "it (writes|maps shared memory|keeps .* open)"),
    ],
)
async def test_a_program_that_does_what_forks_must_not_share_is_spawned(before: str, why: str, tmp_path: Path) -> None:
    shutil.copy(SERVER, tmp_path)
    (tmp_path / "begin.py").write_text(BEGIN)
    entry: dict[str, Any] = {"args": [str(tmp_path / "begin.py")], "env": {"BEFORE": before}}
    async with Gateway(config(**entry)) as gateway, leases(gateway, 1) as (session,):
        assert (await ask(session, "draw"))[2] == os.getpid()
        assert re.search(why, gateway.spawned["world"])


async def test_a_module_that_reads_what_differs_between_leases_is_spawned(tmp_path: Path) -> None:
    shutil.copy(SERVER, tmp_path)
    (tmp_path / "begin.py").write_text(BEGIN)
    entry: dict[str, Any] = {"args": [str(tmp_path / "begin.py")], "env": {"BEFORE": "${lease.dir}"}}
    async with Gateway(config(**entry)) as gateway, leases(gateway, 1) as (session,):
        assert (await ask(session, "draw"))[2] == os.getpid()
        assert gateway.spawned["world"] == "it reads BEFORE before it serves, which differs between leases"


async def test_what_a_main_module_does_before_it_serves_is_done_by_each_fork(tmp_path: Path) -> None:
    """Where its modules may be imported once, and it may not be run once."""
    shutil.copy(SERVER, tmp_path)
    (tmp_path / "begin.py").write_text("import random, forking_server\nforking_server.MADE = random.random()\n" + BEGIN)
    async with Gateway(config(args=[str(tmp_path / "begin.py")])) as gateway, leases(gateway, 2) as sessions:
        assert not gateway.spawned
        assert len({await ask(session, "made") for session in sessions}) == 2


async def test_numpy_is_seeded_again_in_each_fork(tmp_path: Path) -> None:
    shutil.copy(SERVER, tmp_path)
    (tmp_path / "begin.py").write_text(DRAWS)
    entry: dict[str, Any] = {"args": [str(tmp_path / "begin.py")], "env": {"OPENBLAS_NUM_THREADS": "1"}}
    async with Gateway(config(**entry)) as gateway, leases(gateway, 2) as sessions:
        assert not gateway.spawned
        assert len({await ask(session, "draw") for session in sessions}) == 2


async def test_a_server_without_an_event_loop_is_forked_before_it_runs(mini: Any) -> None:
    async with Gateway(config(**mini("pid"))) as gateway, leases(gateway, 2) as sessions:
        assert not gateway.spawned
        assert len({(await session.call("pid", {})).text for session in sessions}) == 2


@pytest.mark.parametrize("varying", [False, True])
async def test_a_fork_of_a_server_of_the_sdk_has_its_code_specialised_and_the_programs_own_logging(
    varying: bool, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    env = {"PLACE": "${lease.dir}"} if varying else {}
    async with Gateway(config(args=[str(tmp_path / "shop.py")], env=env)) as gateway:
        async with gateway.lease(trajectory="spawned", task=None, seed=0) as session:
            spawned = await ask(session, "facts")
        async with leases(gateway, 1) as (session,):
            assert not gateway.spawned
            forked = await ask(session, "facts")
    assert forked.pop("specialised") > spawned.pop("specialised")  # 0 in Python 3.11
    assert forked == spawned


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
    ("head", "options"),
    [
        (f"#!{sys.executable}\n", ()),
        (f"#!{sys.executable} -I\n", ("-I",)),
        (f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n", ()),
        ("#!/usr/bin/env python3\n", ()),
        ("#!/bin/sh\nexec python -m shop\n", None),
        ("\x7fELF", None),
    ],
)
async def test_the_interpreter_of_a_console_script(head: str, options: tuple[str, ...] | None, tmp_path: Path) -> None:
    script = tmp_path / "shop"
    script.write_text(head + "import shop\n")
    script.chmod(0o755)
    found = python_program(ServerConfig(command=str(script), args=("--flag",)), os.environ)
    if options is None:
        assert found is None
    else:
        assert isinstance(found, PythonProgram) and found.main == (str(script),) and found.skipped == 0
        assert found.interpreter[1:] == options and Path(found.interpreter[0]).name.startswith("python")


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


BEGIN = """
import asyncio
from forking_server import serve

if __name__ == "__main__":
    asyncio.run(serve())
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
SHOP = """
import logging
import os
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.tools import ToolManager

def create_server():
    logging.basicConfig(level=logging.WARNING, format="shop %(message)s")
    server = MCPServer("shop", log_level="ERROR")
    code = ToolManager.list_tools.__code__

    @server.tool()
    async def facts() -> dict[str, object]:
        root = logging.getLogger()
        return {
            "specialised": sum(a != b for a, b in zip(code._co_code_adaptive[::2], code.co_code[::2])),
            "level": root.level,
            "formats": [each.formatter._fmt for each in root.handlers],
            "disabled": root.manager.disable,
            "tools": [tool.name for tool in await server.list_tools()],
        }

    return server

if __name__ == "__main__":
    create_server().run()
"""
WORKER = """
import json
import anyio
from forking import ask, config, leases
from gateway import Gateway

async def main():
    async with Gateway(config()) as gateway, leases(gateway, 1) as (session,):
        _, pid, parent = await ask(session, "draw")
        print(json.dumps([pid, parent]), flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""
