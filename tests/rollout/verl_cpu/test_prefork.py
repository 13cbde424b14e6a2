"""Workers forked by a server behave as workers that an interpreter of their own started."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_rollout.rollout.verl_cpu.prefork import PRELOAD

TIMEOUT_S = 20
# Not imported by the interpreter itself, so its presence shows that the server had imported it.
PRELOADED = "wave"

DESCRIBE = """
import os, sys
seen = sys.argv[1:], os.environ["WORKER"], os.getcwd(), sys.stdin.read()
print(os.getppid(), "wave" in sys.modules, *seen, flush=True)
print("to stderr", file=sys.stderr)
sys.exit(int(os.environ["STATUS"]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(DESCRIBE)
    return path


def command(script: Path, *arguments: str, preload: str = PRELOADED) -> list[str]:
    """What Ray runs; the directory of `--raylet-name` is the test's own, so no server is shared between tests."""
    prefork = [sys.executable, "-m", "mcp_rollout.rollout.verl_cpu.prefork", "--preload", preload]
    return [*prefork, str(script), f"--raylet-name={script.parent}/raylet", *arguments]


def work(script: Path, name: str, *, status: int = 0, given: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"WORKER": name, "STATUS": str(status)}
    return subprocess.run(
        command(script, "--node=7"),
        env=environment,
        cwd=script.parent,
        input=given,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_a_worker_has_its_own_arguments_environment_directory_and_streams(script: Path) -> None:
    done = work(script, "one", given="some input")
    _, *seen = done.stdout.split(" ", 1)
    arguments = [f"--raylet-name={script.parent}/raylet", "--node=7"]
    assert seen == [f"True {arguments} one {script.parent} some input\n"]
    assert (done.stderr, done.returncode) == ("to stderr\n", 0)


def test_what_is_imported_once_sees_no_gpu_and_a_worker_has_its_own_variable(script: Path) -> None:
    (script.parent / "noted.py").write_text("import os\nSEEN = os.environ['CUDA_VISIBLE_DEVICES']\n")
    script.write_text("import noted, os\nprint([noted.SEEN, os.environ['CUDA_VISIBLE_DEVICES']])")
    given = os.environ | {"CUDA_VISIBLE_DEVICES": "0", "PYTHONPATH": str(script.parent)}
    arguments = command(script, preload="noted")
    assert subprocess.check_output(arguments, env=given, text=True, timeout=TIMEOUT_S) == "['', '0']\n"


def test_workers_come_from_one_server_and_end_with_their_own_status(script: Path) -> None:
    done = [work(script, str(status), status=status) for status in (0, 3, 1)]
    assert [worker.returncode for worker in done] == [0, 3, 1]
    assert len({worker.stdout.split()[0] for worker in done}) == 1
    assert {worker.stdout.split()[1] for worker in done} == {"True"}


def test_workers_that_start_together_share_one_server(script: Path) -> None:
    environment = os.environ | {"WORKER": "many", "STATUS": "0"}
    started = [
        subprocess.Popen(command(script), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    printed = [worker.communicate(timeout=TIMEOUT_S)[0] for worker in started]
    assert len({line.split()[0] for line in printed}) == 1


def test_workers_draw_ids_of_their_own_and_have_a_process_group_of_their_own(script: Path) -> None:
    (script.parent / "defines.py").write_text("import ray\n\n\n@ray.remote\nclass Actor: ...\n")
    # Ray has a generator for each thread.
    script.write_text("""
import os, ray, threading
drawn = [ray.ObjectID.from_random().hex()]
thread = threading.Thread(target=lambda: drawn.append(ray.ObjectID.from_random().hex()))
thread.start()
thread.join()
print(os.getpgid(0) == os.getpid(), *drawn)
""")
    environment = os.environ | {"PYTHONPATH": f"{script.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    workers = command(script, preload=f"{PRELOAD.partition(',')[0]},defines")
    done = [
        subprocess.run(workers, env=environment, capture_output=True, text=True, timeout=60, check=True)
        for _ in range(3)
    ]
    leads, *drawn = zip(*(worker.stdout.split() for worker in done), strict=True)
    assert [len(set(ids)) for ids in drawn] == [3, 3] and set(leads) == {"True"}


def test_an_exception_and_a_signal_become_an_exit_status(script: Path) -> None:
    script.write_text("raise ValueError('broken')")
    broken = work(script, "broken")
    assert (broken.returncode, "ValueError: broken" in broken.stderr) == (1, True)
    script.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert work(script, "killed").returncode == 137


def test_the_server_ends_when_the_process_that_starts_workers_does(script: Path) -> None:
    # A shell in the raylet's role: it starts one worker, prints which server forked it, and ends with its input.
    raylet = subprocess.Popen(
        ["/bin/sh", "-c", '"$@" </dev/null; read -r line', "sh", *command(script)],
        env=os.environ | {"WORKER": "one", "STATUS": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert raylet.stdin and raylet.stdout
    server = os.pidfd_open(int(raylet.stdout.readline().split()[0]))
    try:
        assert select.select([server], [], [], 0)[0] == []
        raylet.communicate("end\n", timeout=TIMEOUT_S)
        assert select.select([server], [], [], TIMEOUT_S)[0] == [server]
    finally:
        os.close(server)


def test_no_other_user_reaches_what_a_worker_is_given(script: Path) -> None:
    # As Ray leaves its directories.
    script.parent.chmod(0o777)
    before = os.umask(0)
    try:
        assert work(script, "one").returncode == 0
    finally:
        os.umask(before)
    (own,) = (path for path in script.parent.iterdir() if path.name.startswith("prefork"))
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert {path.name for path in own.iterdir()} == {"lock", "log", "socket"}


@pytest.mark.parametrize("planted", ["link", "open directory", "file"])
def test_what_others_may_have_put_in_its_place_is_refused(script: Path, planted: str) -> None:
    own, elsewhere = script.parent / f"prefork-{os.getuid()}", script.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if planted == "link":
        own.symlink_to(elsewhere)
    elif planted == "file":
        own.touch()
    else:
        own.mkdir()
        own.chmod(0o777)
    done = work(script, "one")
    assert done.returncode == 1 and f"{own} is " in done.stderr and list(elsewhere.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_a_request_of_another_user_is_not_served(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert work(script, "one").returncode == 0
    own = script.parent / "prefork-0"
    for path in (own, own / "socket"):
        path.chmod(0o777)  # as if it could be reached
    monkeypatch.chdir(own)  # so that no directory above has to be open
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(TIMEOUT_S)
        os.seteuid(65534)
        try:
            asking.connect("socket")
        finally:
            os.seteuid(0)
        with contextlib.suppress(OSError):  # the server may have closed it before
            socket.send_fds(asking, [b"w"], [0, 1, 2])
            request = {"argv": [str(script)], "env": {"WORKER": "two", "STATUS": "3"}, "cwd": str(own)}
            asking.sendall(json.dumps(request).encode())
            asking.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert asking.recv(16) == b""  # not a status


def test_without_a_raylet_there_is_nothing_to_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mcp_rollout.rollout.verl_cpu.prefork", "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    assert "no --raylet-name" in done.stderr
