"""A fork has what its program did before the fork, as a spawned process has; or it is not forked."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest
from forking import SERVER, ask, config, leases

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


@pytest.mark.parametrize(
    ("varying", "by_name"),
    [("nothing", False), ("nothing", True), ("variable", False), ("variable", True), ("cwd", False)],
)
async def test_a_fork_keeps_what_its_program_changed(varying: str, by_name: bool, program: Path) -> None:
    given = {"CHANGED": "a", "REMOVED": "b", "PYTHONPATH": str(program)}
    entry: dict[str, Any] = {
        "args": ["-m", "begin"] if by_name else [str(program / "begin.py")],
        "env": given | ({"VARIES": "${lease.dir}"} if varying == "variable" else {}),
        "cwd": "${lease.dir}" if varying == "cwd" else str(program.parent),
    }
    (program / "settings.py").write_text(CHANGES)
    found: dict[str, Any] = {}
    for start in ("spawn", "fork"):
        async with Gateway(config(start, **entry)) as gateway, leases(gateway, 1) as (session,):
            assert not gateway.spawned
            facts = found[start] = await ask(session, "facts")
            facts["env"].pop("VARIES", None)
    assert found["fork"] == found["spawn"]
    env = found["fork"]["env"]
    assert (env["ADDED"], env["CHANGED"], env["DEFAULT"]) == ("1", "1", "1") and "REMOVED" not in env
    assert found["fork"]["cwd"] == str(program) and "function" in found["fork"]["signals"]


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("os.chdir('..')", "the working directory"),
        ("os.environ.setdefault('VARIES', '')", "VARIES"),
        ("try: del os.environ['VARIES']\nexcept KeyError: pass", "VARIES"),
    ],
)
async def test_a_program_whose_changes_depend_on_what_differs_is_spawned(code: str, what: str, program: Path) -> None:
    (program / "settings.py").write_text(f"import os\n{code}\n")
    entry: dict[str, Any] = {"env": {"VARIES": "${lease.dir}"}, "cwd": "${lease.dir}"}
    async with Gateway(config(args=[str(program / "begin.py")], **entry)) as gateway, leases(gateway, 1) as (session,):
        assert (await ask(session, "draw"))[2] == os.getpid()
        assert gateway.spawned["world"] == f"it reads {what} before it serves, which differs between leases"


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("imported_only", ["", "variable", "main"])
async def test_imported_modules_see_and_change_the_arguments(imported_only: str, by_name: bool, program: Path) -> None:
    (program / "settings.py").write_text(READS_ARGUMENTS)
    (program / "__init__.py").write_text("import sys\nSEEN = list(sys.argv)\n")
    if imported_only == "main":
        (program / "begin.py").write_text("import random\nrandom.random()\n" + BEGIN)
    main = ["-m", "program.begin"] if by_name else [str(program / "begin.py")]
    env = {"PYTHONPATH": str(program)} | ({"VARIES": "${lease.dir}"} if imported_only == "variable" else {})
    found: dict[str, Any] = {}
    for start in ("spawn", "fork"):
        entry: dict[str, Any] = {"args": [*main, "--once", "--kept"], "env": env, "cwd": str(program.parent)}
        async with Gateway(config(start, **entry)) as gateway, leases(gateway, 1) as (session,):
            assert not gateway.spawned
            found[start] = [await ask(session, "made"), (await ask(session, "facts"))["argv"]]
    assert found["fork"] == found["spawn"] and found["fork"][1] == ["--kept"]


async def test_a_list_of_arguments_that_a_module_kept_is_that_of_its_fork(program: Path) -> None:
    (program / "settings.py").write_text("from sys import argv\nimport forking_server\nforking_server.MADE = argv\n")
    place = config(args=[str(program / "begin.py"), "${lease.dir}"])
    async with Gateway(place) as gateway, leases(gateway, 2) as sessions:
        assert not gateway.spawned
        assert len({(await ask(session, "made"))[1] for session in sessions}) == 2


@pytest.mark.parametrize(
    "code",
    ["'--flag' in sys.argv", "len(sys.argv)", "sys.argv == []", "[*sys.argv]", "[''] + sys.argv", "sys.argv.pop()"],
)
async def test_a_module_that_reads_arguments_that_differ_is_spawned(code: str, program: Path) -> None:
    (program / "settings.py").write_text(f"import sys\n{code}\n")
    place = config(args=[str(program / "begin.py"), "--flag", "${lease.dir}"])
    async with Gateway(place) as gateway, leases(gateway, 1) as (session,):
        assert (await ask(session, "draw"))[2] == os.getpid()
        assert gateway.spawned["world"] == "it reads the arguments before it serves, which differs between leases"


@pytest.mark.parametrize("of_library", [False, True])
@pytest.mark.parametrize(
    "code", ["secrets.token_hex()", "random.SystemRandom().random()", "random.normalvariate(0, 1)"]
)
async def test_only_a_library_may_draw_random_numbers_before_it_serves(
    code: str, of_library: bool, program: Path, tmp_path: Path
) -> None:
    name = "library.py" if of_library else "settings.py"
    (tmp_path / "library.py").write_text("")
    (program / "settings.py").write_text("import library\n")
    ((tmp_path if of_library else program) / name).write_text(f"import random, secrets\n{code}\n")
    entry: dict[str, Any] = {"args": [str(program / "begin.py")], "env": {"PYTHONPATH": str(tmp_path)}}
    async with Gateway(config(**entry)) as gateway, leases(gateway, 1) as (session,):
        assert ((await ask(session, "draw"))[2] != os.getpid()) is of_library
        assert gateway.spawned.get("world", "") == ("" if of_library else "it draws random numbers before it serves")


@pytest.mark.parametrize("module", ["settings", "library"])
async def test_only_a_library_that_is_imported_may_list_the_variables(
    module: str, program: Path, tmp_path: Path
) -> None:
    (tmp_path / "library.py").write_text("import os\ndef copy(): return os.environ.copy()\n")
    (program / "settings.py").write_text("import library\n")
    with (program / "settings.py" if module == "settings" else tmp_path / "library.py").open("a") as file:
        file.write("library.copy()\n" if module == "settings" else "copy()\n")
    env = {"PYTHONPATH": str(tmp_path), "VARIES": "${lease.dir}"}
    async with Gateway(config(args=[str(program / "begin.py")], env=env)) as gateway, leases(gateway, 1):
        problem = "it reads VARIES before it serves, which differs between leases"
        assert gateway.spawned == ({"world": problem} if module == "settings" else {})


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A directory with `begin.py`, which imports a module `settings` before it serves."""
    place = tmp_path / "program"
    place.mkdir()
    shutil.copy(SERVER, place)
    (place / "begin.py").write_text(BEGIN)
    return place


async def lease(gateway: Gateway, number: int, parents: list[int]) -> None:
    async with gateway.lease(trajectory=f"s{number}", task=None, seed=number) as session:
        parents.append((await ask(session, "draw"))[2])


BEGIN = """
import asyncio
import settings
import forking_server

if __name__ == "__main__":
    asyncio.run(forking_server.serve())
"""
CHANGES = """
import os
import signal

os.environ["ADDED"] = os.environ["CHANGED"] = "1"
os.environ.setdefault("DEFAULT", "1")
os.environ.pop("REMOVED", None)
os.chdir(os.path.dirname(os.path.abspath(__file__)))
signal.signal(signal.SIGCHLD, lambda *_: None)
"""
READS_ARGUMENTS = """
import sys
import forking_server

package = sys.modules.get("program")
forking_server.MADE = [list(sys.argv), "--once" in sys.argv, package and package.SEEN]
sys.argv.remove("--once")
"""
