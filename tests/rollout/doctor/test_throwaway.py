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

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.rollout.doctor.confined import abi
from mcp_rollout.rollout.doctor.permission import granted
from mcp_rollout.rollout.doctor.throwaway import Throwaway, lease_places, why_not

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
    assert (place / "notes" / "probe.txt").read_text() == "one line\n"
    assert made.changed(place) == ("data.db", "home/h", "notes/new", "work/w")
    assert made.own_directory(("data.db", "home/h")).args == {2: "${lease.dir}/data.db"}
    assert made.own_directory(("data.db", "home/h")).env == {"HOME": "${lease.dir}"}
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
    changes = made.own_directory(("data2/files/new", "data3/files/new", "data4/notes.txt"))
    places = ("${lease.dir}/data2/files", "--more=${lease.dir}/data3/files", "${lease.dir}/data4/notes.txt")
    assert changes.args == dict(enumerate(places, start=2))
    assert changes.data == {"data2/files": a, "data3/files": b}


def test_what_can_be_no_path_or_has_no_name_is_no_error() -> None:
    assert lease_places([ServerConfig(**python("x" * 300))]) == {}
    places = lease_places([ServerConfig(**python("pass", ".", "..", "~no-such-user/a.db"))])
    assert list(places.values()) == [Path.cwd().name, "root", "a.db"]


FORBIDDEN = {
    "a file elsewhere": "open(sys.argv[1] + '/new', 'w')",
    "a file that exists": "open(sys.argv[1] + '/mine', 'w')",
    "removing": "os.remove(sys.argv[1] + '/mine')",
    "renaming": "os.rename(sys.argv[1] + '/mine', 'mine')",
    "truncating": "os.truncate(sys.argv[1] + '/mine', 0)",
    "its time": "os.utime(sys.argv[1] + '/mine')",
    "its time, by a descriptor": "os.utime(os.open(sys.argv[1] + '/mine', 0))",
    "its mode": "os.chmod(sys.argv[1] + '/mine', 0o600)",
    "its mode, through a link": "os.symlink(sys.argv[1] + '/mine', 'link'); os.chmod('link', 0o600)",
    "its owner": "os.chown(sys.argv[1] + '/mine', os.getuid(), os.getgid())",
    "an attribute": "os.setxattr(sys.argv[1] + '/mine', 'user.x', b'x')",
    "a device": "open('/proc/sys/kernel/hostname', 'w')",
    "a signal": "os.kill(int(sys.argv[2]), signal.SIGCONT)",
}
REFUSED = {
    "a connection": ("socket.create_connection(('127.0.0.1', port))", "127.0.0.1:{port}"),
    "IPv6": ("socket.create_connection(('::1', port))", "[::1]:{port}"),
    "a datagram": ("socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port))", "127.0.0.1:{port}"),
    "a datagram with control data": (
        "socket.socket(type=socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, ('127.0.0.1', port))",
        "127.0.0.1:{port}",
    ),
    "connected datagrams": ("socket.socket(type=socket.SOCK_DGRAM).connect(('127.0.0.1', port))", "127.0.0.1:{port}"),
    "a socket in a directory": ("socket.socket(socket.AF_UNIX).connect(sys.argv[1] + '/socket')", "{outside}/socket"),
}
STARTS = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', *sys.argv[1:]]).returncode)"


def outside_of(tmp_path: Path) -> Path:
    outside = tmp_path / "outside.py"  # a directory that looks like a program is not copied
    outside.mkdir()
    (outside / "mine").write_text("mine")
    return outside


@pytest.mark.parametrize("code", FORBIDDEN.values(), ids=list(FORBIDDEN))
def test_nothing_else_can_be_changed_even_by_what_it_starts(tmp_path: Path, code: str) -> None:
    outside = outside_of(tmp_path)
    before = (outside / "mine").stat()
    inner = f"import os, signal, socket, sys; {code}"
    made = throwaway(tmp_path, **python(STARTS, inner, str(outside), str(os.getpid())))
    done = result_of(made.world()[0])
    after = (outside / "mine").stat()
    assert done.returncode == 1 and "PermissionError" in done.stderr and made.refused() == ()
    assert [file.read_text() for file in outside.iterdir()] == ["mine"]
    assert (after.st_mtime_ns, after.st_ctime_ns, after.st_mode) == (
        before.st_mtime_ns,
        before.st_ctime_ns,
        before.st_mode,
    )


@pytest.mark.parametrize(("code", "address"), REFUSED.values(), ids=list(REFUSED))
def test_an_address_that_it_tries_to_reach_is_refused_and_recorded_unless_it_is_named(
    tmp_path: Path, code: str, address: str
) -> None:
    outside = outside_of(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(outside / "socket"))
        local.listen()
        port = listener.getsockname()[1]
        inner = f"import socket, sys; port = {port}; {code}"
        made = throwaway(tmp_path, **python(STARTS, inner, str(outside)))
        done = result_of(made.world()[0])
        assert done.returncode == 1 and "ConnectionRefusedError" in done.stderr
        assert made.refused() == (address.format(port=port, outside=outside),)
        made.granted = granted(made.refused())
        (made.root / "refused").unlink()
        result_of(made.world()[0])
        assert made.refused() == ()


def test_a_program_in_its_places_is_as_free_as_elsewhere(tmp_path: Path) -> None:
    code = (
        "import os, shutil, signal, socket; open('a', 'w').write('x'); shutil.copy2('a', 'b'); os.chmod('b', 0o600);"
        "os.utime('b'); os.truncate('b', 0); os.chown('b', os.getuid(), os.getgid());"
        "s = socket.socket(socket.AF_UNIX); s.bind('own'); s.listen(); socket.socket(socket.AF_UNIX).connect('own');"
        "one, other = socket.socketpair(); one.send(b'x'); socket.getaddrinfo('localhost', 80); print(other.recv(1));"
        "os.kill(os.getpid(), signal.SIGUSR1)"
    )
    made = throwaway(tmp_path, **python(code))
    done = result_of(made.world()[0])
    assert (done.stdout, done.returncode) == ("b'x'\n", -signal.SIGUSR1), done.stderr
    assert made.refused() == ()


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
    "text",
    [
        "{}",
        "--db={}",
        "-d={}",
        "NOTES_DB={}",
        "serve --db {} --verbose",
        "/nowhere:{}",
        "file:{}?mode=rw",
        "sqlite:///{}",
        '{{"db": "{}"}}',
    ],
)
@pytest.mark.parametrize("kind", ["file", "directory", "link", "odd"])
def test_data_is_copied_wherever_an_entry_names_it(tmp_path: Path, text: str, kind: str) -> None:
    name = "notes.mine" if kind == "odd" else "notes.sqlite"
    data = tmp_path / "of mine" / name if text == "{}" else tmp_path / name
    real = data.with_name("real") if kind == "link" else data
    real.parent.mkdir(exist_ok=True)
    real.mkdir() if kind == "directory" else real.write_text("mine")
    if kind == "link":
        data.symlink_to(real)
    named = text.format(data)
    made = throwaway(tmp_path, **python("pass", named, env={"API_KEY": "/k3y", "NOTES": named}))
    entry, place = made.world()
    copy = str(place / name)
    assert (entry.args[-1], entry.env["NOTES"], entry.env["API_KEY"]) == (*[text.format(copy)] * 2, "/k3y")
    assert os.path.isdir(copy) if kind == "directory" else Path(copy).read_text() == "mine"
    assert made.own_directory((name,)).env == {"NOTES": text.format(f"${{lease.dir}}/{name}")}


def test_the_working_directory_of_an_entry_is_copied_also_if_an_argument_names_it(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.db").write_text("mine")
    (tmp_path / "notes" / "link").symlink_to(tmp_path)
    notes = str(tmp_path / "notes")
    made = throwaway(tmp_path, **python("open('notes.db', 'a').write('!')", f"--in={notes}", cwd=notes))
    entry, place = made.world()
    assert result_of(entry).returncode == 0 and (tmp_path / "notes" / "notes.db").read_text() == "mine"
    changes = made.own_directory(made.changed(place))
    assert changes.cwd == "${lease.dir}/notes" and changes.args == {2: "--in=${lease.dir}/notes"}
    assert changes.data == {"notes": str(tmp_path / "notes")}
