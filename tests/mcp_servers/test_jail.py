"""Code from strangers: what it may do, and every way out that we could think of, tried."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mcp_rollout.mcp_servers._jail.child import Limits
from mcp_rollout.mcp_servers._jail.jail import Ending, Run, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has the means")
QUICK = Limits(cpu_s=1, wall_s=3.0, memory_mb=192, disk_mb=4)


def played(source: str, limits: Limits = QUICK) -> Run:
    return run(source, limits)


def test_plain_programs_run_with_the_standard_library_and_files_of_their_own():
    made = played(
        "import json, re, zlib, decimal, hashlib, statistics, csv, datetime, random, os, email, textwrap, heapq\n"
        "open('notes.txt', 'w').write('so much depends')\n"
        "os.makedirs('a/b')\n"
        "os.rename('notes.txt', 'a/b/notes.txt')\n"
        "print(open('a/b/notes.txt').read(), sorted(os.listdir('.')), os.getcwd())\n"
    )
    assert made == Run(ending=Ending.FINISHED, output="so much depends ['a'] /work\n", results=[])


def test_each_run_has_a_fresh_directory():
    played("open('mine', 'w').write('x')")
    assert played("import os; print(os.listdir('.'))").output == "[]\n"


def test_the_same_program_prints_the_same_every_time():
    source = "print({'a', 'b', 'c', 'd', 'e'}, hash('x'), list({'p': 1, 'q': 2}))"
    assert len({played(source).output for _ in range(3)}) == 1


def test_a_function_is_called_with_each_argument_and_one_failure_does_not_end_the_rest():
    made = run("def f(a, b):\n    return [a // b]", QUICK, function="f", arguments=[[6, 3], [1, 0], [5, 2]])
    failed = {"error": "ZeroDivisionError: integer division or modulo by zero"}
    assert made.results == [{"value": [2]}, failed, {"value": [2]}]


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError"),
        ("raise SystemExit('over')", "over"),
        ("import sys; sys.exit(3)", ""),
        ("def f(): f()\nf()", "RecursionError"),
        ("x = ' ' * 10**9", "MemoryError"),
    ],
)
def test_what_fails_says_why_and_shows_nothing_of_us(source: str, output: str):
    made = played(source)
    assert made.ending is Ending.FAILED
    assert output in made.output and "mcp_servers" not in made.output


ESCAPES = {
    "tcp": "import socket; socket.create_connection(('127.0.0.1', {port}))",
    "udp": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "unix socket": "import socket; socket.socket(socket.AF_UNIX)",
    "socket pair": "import socket; socket.socketpair()",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "passwords": "open('/etc/passwd')",
    "our sources": "open({here!r})",
    "the interpreter's packages": "import os; assert os.listdir(os.path.dirname(os.__file__) + '/site-packages')",
    "a file by a climb": "open('../../../../../../etc/hostname')",
    "process table": "import os; os.listdir('/proc')",
    "the parent's environment": "open('/proc/1/environ')",
    "devices": "open('/dev/mem')",
    "writing to the root": "open('/here', 'w')",
    "writing to the standard library": "import os; open(os.__file__, 'a')",
    "writing beside the standard library": "import os; open(os.path.dirname(os.__file__) + '/x.py', 'w')",
    "another process": "import os; os.fork()",
    "a program": "import subprocess; subprocess.run(['/bin/true'])",
    "replacing itself": "import os, sys; os.execv(sys.executable, [sys.executable])",
    "a thread": "import threading; threading.Thread(target=print).start()",
    "killing the parent": "import os, signal; os.kill(1, signal.SIGKILL)",
    "killing the server": "import os, signal; os.kill({pid}, signal.SIGKILL)",
    "killing everybody": "import os, signal; os.kill(-1, signal.SIGKILL)",
    "tracing": "import ctypes; l = ctypes.CDLL(None); assert l.ptrace(16, {pid}, 0, 0) == 0 or l.ptrace(16, 1, "
    "0, 0) == 0",
    "reading others' memory": ("import ctypes; assert ctypes.CDLL(None).syscall(310, {pid}, None, 0, None, 0, 0) == 0"),
    "new namespaces": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "mounting": "import ctypes; assert ctypes.CDLL(None).mount(b'none', b'/work', b'tmpfs', 0, b'') == 0",
    "unmounting": "import ctypes; assert ctypes.CDLL(None).umount2(b'/work', 2) == 0",
    "another root": "import os; os.chroot('/work')",
    "shared memory": "import ctypes; assert ctypes.CDLL(None).shmget(0, 1 << 20, 0o1666) >= 0",
    "memory in a file": "import os; os.memfd_create('x')",
    "io_uring": "import ctypes; assert ctypes.CDLL(None).syscall(425, 8, b' ' * 120) >= 0",
    "32-bit system calls": "import ctypes; assert ctypes.CDLL(None).syscall(0x40000000 + 41, 2, 1, 0) >= 0",
    "raising its own limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "the clock": "import time; time.clock_settime(time.CLOCK_REALTIME, 0)",
    "a terminal": "import os, fcntl; fcntl.ioctl(0, 0x5412, b'x')",
    "our descriptors": "import os; assert any(os.path.exists(f'/proc/self/fd/{{n}}') for n in range(9)) or "
    "os.read(0, 9)",
}


ATTEMPTS = """
for name, source in {escapes!r}.items():
    try:
        exec(source, {{}})
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        print(name, 'refused', repr(error), sep=chr(9), flush=True)
    else:
        print(name, 'OUT', sep=chr(9), flush=True)
"""


@pytest.fixture(scope="module")
def attempts() -> dict[str, str]:
    """What came of each escape, all tried in one run."""
    escapes = {name: source.format(pid=os.getpid(), here=__file__, port=22) for name, source in ESCAPES.items()}
    made = played(ATTEMPTS.format(escapes=escapes))
    assert made.ending is Ending.FINISHED, made
    return dict(line.split("\t", 1) for line in made.output.splitlines())


@pytest.mark.parametrize("escape", ESCAPES)
def test_no_way_out(escape: str, attempts: dict[str, str]):
    assert attempts[escape].startswith("refused")


def test_the_root_holds_the_work_directory_and_the_way_to_the_standard_library():
    source = (
        "import os\nfor place, names, files in os.walk('/'):\n    if 'python3' not in place: print(place, names, files)"
    )
    places = dict(line.split(" ", 1) for line in played(source).output.splitlines())
    library = Path(os.__file__).parent
    assert set(places) == {"/", "/work", *(str(place) for place in library.parents)}
    assert all(said.endswith(" []") for said in places.values())


def test_a_filter_cannot_be_taken_off_by_another_one():
    made = played(
        "import ctypes; print(ctypes.CDLL(None).prctl(22, 0, 0, 0, 0), ctypes.CDLL(None).prctl(38, 0, 0, 0, 0))"
    )
    assert made.output == "-1 -1\n"


def processes() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


BOMBS = {
    "fork bomb": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "thread bomb": "import threading, _thread\nwhile True:\n    try:\n"
    "        _thread.start_new_thread(print, ())\n    except RuntimeError:\n        pass",
    "endless loop": "while True: pass",
    "endless loop that catches everything": "while True:\n    try:\n        while True: pass\n"
    "    except BaseException: pass",
    "signals ignored": "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
    "    except (OSError, ValueError): pass\nwhile True: pass",
}


QUICK_BOMBS = ("fork bomb", "endless loop that catches everything")


@pytest.mark.parametrize(
    "bomb", [bomb if bomb in QUICK_BOMBS else pytest.param(bomb, marks=pytest.mark.full) for bomb in BOMBS]
)
def test_processor_time_is_bounded(bomb: str):
    before = processes()
    assert played(BOMBS[bomb], Limits(cpu_s=1, wall_s=100.0)).ending is Ending.CPU_TIME
    assert processes() <= before


def test_waiting_is_bounded_and_leaves_no_process():
    before = processes()
    made = played("import time, sys; print('here', flush=True); time.sleep(10**6)", Limits(wall_s=0.5))
    assert (made.ending, made.output) == (Ending.WALL_TIME, "here\n")
    assert processes() <= before


def test_memory_is_bounded_also_in_small_pieces_and_caught():
    source = (
        "kept = []\n"
        "try:\n    while True: kept.append(bytearray(1 << 20))\n"
        "except MemoryError:\n    count = len(kept); kept.clear(); print(count)"
    )
    assert 10 < int(played(source).output) < QUICK.memory_mb


def test_the_disk_is_bounded_by_file_by_sum_and_by_number():
    one = "open('x', 'wb').write(b'x' * (5 << 20))"
    many = "for n in range(100): open(f'x{n}', 'wb').write(b'x' * (1 << 20))"
    small = "for n in range(10**5): open(f'x{n}', 'w').close()"
    hidden = "import os\nfor n in range(10**5): os.mkdir('d'); os.chdir('d')"
    for source in (one, many, small, hidden):
        assert "Error" in played(source).output


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_is_bounded(stream: str):
    limits = Limits(output_bytes=100_000)
    made = run(f"import sys\nwhile True: sys.{stream}.write('x' * 65536)", limits)
    assert made.ending is Ending.OUTPUT and len(made.output) == 100_000


def test_results_are_bounded_too():
    made = run("def f(n): return 'x' * n", Limits(output_bytes=100_000), function="f", arguments=[[10**6]])
    assert made.ending is Ending.OUTPUT and made.results == []


def test_open_files_are_bounded():
    assert "Too many open files" in played("kept = [open(f'{n}', 'w') for n in range(1000)]").output


FORGED = r"""
import os
for descriptor in range(3, 1024):
    try:
        os.write(descriptor, b'no json\n[1]\n' + b'[' * 10**5 + b'\n')
    except OSError:
        pass
def f():
    return 1
"""


def test_what_the_code_writes_among_the_results_is_none():
    assert run(FORGED, QUICK, function="f", arguments=[[]]).results == []


def test_a_daemon_is_not_left_behind():
    # It may not even begin; what counts is that nothing of it is there afterwards.
    source = (
        "import os, time\ntry:\n    if os.fork() == 0:\n        os.setsid(); time.sleep(1000)\nexcept OSError: pass"
    )
    before = processes()
    played(source)
    assert processes() <= before
    # Another test process may run a jail at the same time; that one ends by itself.
    jails = [one for one in psutil.process_iter(["cmdline"]) if "_jail.child" in " ".join(one.info["cmdline"] or ())]
    assert not psutil.wait_procs(jails, timeout=60)[1]


@pytest.mark.parametrize("runs", [3, pytest.param(1000, marks=[pytest.mark.full, pytest.mark.timeout(1800)])])
def test_runs_leave_no_file_no_descriptor_and_no_process(runs: int):
    played("")
    before = (set(os.listdir("/tmp")), len(os.listdir("/proc/self/fd")), processes())
    for number in range(runs):
        played(f"open('{number}', 'w').write('x')" if number % 2 else "import time; 1 / 0")
    new = set(os.listdir("/tmp")) - before[0]
    assert not {name for name in new if "work" in name or "jail" in name}
    assert len(os.listdir("/proc/self/fd")) == before[1] and processes() == before[2]


FEWER = {
    "user namespaces": "echo 0 > /proc/sys/user/max_user_namespaces",
    "mount namespaces": "echo 0 > /proc/sys/user/max_mnt_namespaces",
    "pid namespaces": "echo 0 > /proc/sys/user/max_pid_namespaces",
    "network namespaces": "echo 0 > /proc/sys/user/max_net_namespaces",
}


@pytest.mark.parametrize(
    "missing", [name if name == "user namespaces" else pytest.param(name, marks=pytest.mark.full) for name in FEWER]
)
def test_a_machine_without_the_means_is_refused_and_nothing_runs(missing: str):
    assert shutil.which("unshare"), "util-linux is needed"
    program = (
        "from mcp_rollout.mcp_servers._jail.jail import run, JailUnavailable\n"
        "from mcp_rollout.mcp_servers._jail.child import Limits\n"
        "try:\n    print('RAN', run(\"print('RAN')\", Limits()))\n"
        "except JailUnavailable as error:\n    print(error)\n"
    )
    script = f'{FEWER[missing]} && exec "$@"'
    made = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", script, "sh", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert "cannot isolate code, so none is run (OSError: [Errno 28] unshare" in made.stdout, made
    assert "RAN" not in made.stdout


def test_a_run_does_not_outlive_the_process_that_asked_for_it():
    program = (
        "from mcp_rollout.mcp_servers._jail.jail import run\nfrom mcp_rollout.mcp_servers._jail.child import Limits\n"
        "run('import time\\nprint(1)\\ntime.sleep(1000)', Limits(wall_s=1000.0))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as parent:
        me = psutil.Process(parent.pid)
        deadline = time.monotonic() + 30
        while len(me.children(recursive=True)) < 3:
            assert time.monotonic() < deadline
        below = me.children(recursive=True)
        parent.kill()
    gone, alive = psutil.wait_procs(below, timeout=10)
    assert len(gone) == 3 and not alive
