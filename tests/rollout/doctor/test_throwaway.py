"""Probes write, and nothing that belongs to the user changes."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.config.models import ServerConfig
from rollout.doctor.confined import abi
from rollout.doctor.throwaway import Throwaway, lease_places, why_not
from rollout.doctor.tool_words import credentials_of

pytestmark = pytest.mark.skipif(abi() < 4, reason="needs Landlock with rules for the network (Linux 6.7)")


def unprepared(root: Path, entry: ServerConfig, *others: ServerConfig) -> Throwaway:
    return Throwaway(root=root, entry=entry, page_port=0, word="probe", places=lease_places([*others, entry]))


def throwaway(tmp_path: Path, **entry: Any) -> Throwaway:
    made = unprepared(tmp_path / "throwaway", ServerConfig(**entry))
    assert made.prepare() == ""
    return made


def result_of(entry: ServerConfig) -> subprocess.CompletedProcess[str]:
    assert entry.command is not None
    argv = [entry.command, *entry.args]
    return subprocess.run(
        argv, env={**os.environ, **entry.env}, cwd=entry.cwd, capture_output=True, text=True, check=False
    )


def python(code: str, *args: str, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-c", code, *args], **more}


def test_a_program_writes_to_copies_of_its_data_alone(tmp_path: Path) -> None:
    data, notes = tmp_path / "data.db", tmp_path / "notes"
    data.write_text("mine")
    notes.mkdir()
    code = (
        "import os, sys, pathlib; d, n = map(pathlib.Path, sys.argv[1:]); print(d.read_text()); d.write_text('theirs');"
        "(n / 'new').touch(); pathlib.Path.home().joinpath('h').touch(); pathlib.Path('w').touch()"
    )
    made = throwaway(tmp_path, **python(code, str(data), str(notes)))
    entry, place = made.world()
    done = result_of(entry)
    assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr
    assert data.read_text() == "mine" and not list(notes.iterdir())
    assert (place / "data1" / "notes" / "probe.txt").read_text() == "one line\n"
    assert made.changed(place) == ("data/data.db", "data1/notes/new", "home/h", "work/w")
    assert made.own_directory(("data/data.db", "home/h")).args == {2: "${lease.dir}/data.db"}
    assert made.own_directory(("data/data.db", "home/h")).env == {"HOME": "${lease.dir}"}
    _, fresh = made.world()
    assert made.changed(fresh) == ()


def test_npx_finds_the_packages_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "node_modules" / "memory").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    made = throwaway(tmp_path, command="npx", args=["memory"])
    _, place = made.world()
    assert (place / "work" / "node_modules" / "memory").is_dir() and made.changed(place) == ()


@pytest.mark.parametrize(("files", "size"), [(4000, 0), (1, 64 << 20)], ids=["files", "bytes"])
def test_data_beyond_a_bound_is_not_copied_and_nothing_is_written(tmp_path: Path, files: int, size: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(files):
        (data / f"{number}.txt").touch()
    os.truncate(data / "0.txt", size)
    entry = ServerConfig(**python("pass", str(data)))
    assert unprepared(tmp_path / "within", entry).prepare() == ""
    (data / "more.txt").write_text("x")
    assert unprepared(tmp_path / "beyond", entry).prepare().startswith(f"{data} is too large to copy")


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        (stat.S_IFIFO | 0o600, "is a named pipe"),
        (stat.S_IFSOCK | 0o600, "No such device or address"),
        pytest.param(
            stat.S_IFREG,
            "Permission denied",
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file"),
        ),
    ],
    ids=["FIFO", "socket", "unreadable"],
)
def test_data_that_cannot_be_copied_is_named_with_the_reason(tmp_path: Path, mode: int, reason: str) -> None:
    file = tmp_path / "data" / "more" / "odd"
    file.parent.mkdir(parents=True)
    os.mknod(file, mode)
    refused = unprepared(tmp_path / "made", ServerConfig(**python("pass", str(tmp_path / "data")))).prepare()
    assert refused.startswith("its data cannot be copied: ") and str(file) in refused and reason in refused


def test_data_of_one_name_has_a_place_for_each_in_the_directory_of_a_lease(tmp_path: Path) -> None:
    a, b, c, notes = (str(tmp_path / name) for name in ("a/files", "b/files", "c/files", "notes.txt"))
    os.makedirs(a)
    os.makedirs(b)
    named = ServerConfig(command="x", args=("${lease.dir}/notes.txt",))
    other = ServerConfig(command="x", args=(c, a))  # what both name stays one place
    made = unprepared(tmp_path / "made", ServerConfig(**python("pass", a, f"--more={b}", notes)), other, named)
    assert made.prepare() == ""
    changes = made.own_directory(("data/new", "data1/new", "data2/notes.txt"))
    places = ("${lease.dir}/data2/files", "--more=${lease.dir}/data3/files", "${lease.dir}/data4/notes.txt")
    assert changes.args == dict(enumerate(places, start=2))
    assert changes.data == {"data2/files": a, "data3/files": b}


def test_what_can_be_no_path_or_has_no_name_is_no_error() -> None:
    assert lease_places([ServerConfig(**python("x" * 300))]) == {}
    places = lease_places([ServerConfig(**python("pass", ".", "..", "~no-such-user/a.db"))])
    assert list(places.values()) == ["root", "data2/root", "a.db"]


FORBIDDEN = {
    "a file elsewhere": "open(sys.argv[1] + '/new', 'w')",
    "a file that exists": "open(sys.argv[1] + '/mine', 'w')",
    "removing": "os.remove(sys.argv[1] + '/mine')",
    "a device": "open('/proc/sys/kernel/hostname', 'w')",
    "a signal": "os.kill(int(sys.argv[2]), signal.SIGCONT)",
    "a connection": "socket.create_connection(('127.0.0.1', int(sys.argv[3])))",
}


@pytest.mark.parametrize("code", FORBIDDEN.values(), ids=list(FORBIDDEN))
def test_nothing_else_can_be_changed_or_reached_even_by_what_it_starts(tmp_path: Path, code: str) -> None:
    outside = tmp_path / "outside.py"  # a directory that looks like a program is not copied
    outside.mkdir()
    (outside / "mine").write_text("mine")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        inner = f"import os, signal, socket, sys; {code}"
        starts = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', *sys.argv[1:]]).returncode)"
        arguments = (inner, str(outside), str(os.getpid()), str(listener.getsockname()[1]))
        made = throwaway(tmp_path, **python(starts, *arguments))
        done = result_of(made.world()[0])
    assert done.returncode == 1 and "PermissionError" in done.stderr
    assert [file.read_text() for file in outside.iterdir()] == ["mine"]
    assert signal.SIGCONT and result_of(ServerConfig(**python("print(1)"))).returncode == 0


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"url": "http://127.0.0.1/mcp"}, "it is not a process of ours"),
        ({"command": "no-such-program"}, "there is no such program"),
        ({"command": sys.executable}, ""),
    ],
)
def test_what_cannot_be_confined_says_why(entry: dict[str, Any], reason: str) -> None:
    assert why_not(ServerConfig(**entry)) == reason


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ({"command": "x", "env": {"GITHUB_TOKEN": "t"}}, "env.GITHUB_TOKEN"),
        ({"command": "x", "env": {"SHOP_DATABASE": "postgres://ada:pw@localhost/shop"}}, "env.SHOP_DATABASE"),
        ({"command": "x", "args": ["--api-key", "t"]}, "args"),
        ({"command": "x", "args": ["https://example.org/mcp"]}, "args"),
        ({"url": "http://127.0.0.1/mcp", "headers": {"authorization": "t"}}, "headers"),
        ({"command": "x", "args": ["--db-path", "keys.db"], "env": {"MEMORY_FILE_PATH": "/m"}}, ""),
    ],
)
def test_credentials_are_found_by_their_names(entry: dict[str, Any], found: str) -> None:
    assert credentials_of(ServerConfig(**entry)) == found
