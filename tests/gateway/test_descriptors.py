"""File descriptors: what many messages at a time may take, in a process that has few, and looks at /proc."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HOSTILE = Path(__file__).parents[1] / "hostile" / "hostile_http.py"
SWEEPER = Path(__file__).parents[2] / "gateway" / "leases" / "sweeper.py"
PROGRAM = """
import os, resource, sys

LIMIT, URL, TOOL, CALLS = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))

import anyio
from mcp_rollout import Gateway, GatewayConfig


async def main():
    config = GatewayConfig.model_validate({"servers": {"world": {"url": URL, "required": True}}})
    async with Gateway(config) as gateway, gateway.lease(trajectory="t", task=None, seed=1) as session:
        results = []

        async def call(tool):
            results.append((await session.call(tool, {})).text)

        peak = 0

        async def watch():
            nonlocal peak
            while True:
                peak = max(peak, len(os.listdir("/proc/self/fd")))
                await anyio.sleep(0.002)

        async with anyio.create_task_group() as watching:
            watching.start_soon(watch)
            async with anyio.create_task_group() as tasks:
                for _ in range(CALLS):
                    tasks.start_soon(call, TOOL)
            watching.cancel_scope.cancel()
        await call("echo")
    print(*sorted(set(results)), len(results), peak, sep="|")


anyio.run(main)
"""


def outcome(behaviour: str, *, descriptors: int, tool: str, calls: int) -> tuple[str, int]:
    """What the calls returned, each text once, with their number; and the most descriptors in use meanwhile."""
    with subprocess.Popen([sys.executable, "-I", "-S", str(HOSTILE), behaviour], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}/mcp"
            argv = [sys.executable, "-c", PROGRAM, str(descriptors), url, tool, str(calls)]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        finally:
            server.kill()
    assert done.returncode == 0, done.stderr[-2000:]
    texts, _, peak = done.stdout.splitlines()[-1].rpartition("|")
    return texts, int(peak)


pytestmark = pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="counts what /proc lists")


def test_three_thousand_pings_within_a_call_exhaust_no_descriptors() -> None:
    texts, peak = outcome("3,000 pings", descriptors=1024, tool="harm", calls=1)
    assert texts == "after 3,000|hostile|2" and peak < 100


def test_more_calls_at_a_time_than_there_are_descriptors_wait_for_their_turn() -> None:
    texts, peak = outcome("held", descriptors=256, tool="harm", calls=400)
    assert texts == "held|hostile|401" and peak < 256


FEW = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
import anyio
from mcp_rollout import Gateway, GatewayConfig

async def main(sessions, **entry):
    async with Gateway(GatewayConfig.model_validate({"servers": {"world": entry}, "max_sessions": sessions})):
        print("there")

anyio.run(lambda: main(86, url="http://127.0.0.1:9/mcp"))
anyio.run(lambda: main(87, url="http://127.0.0.1:9/mcp"))
anyio.run(lambda: main(87, command="no-such-program"))
anyio.run(lambda: main(43, command="no-such-program", scope="process"))
anyio.run(lambda: main(44, command="no-such-program", scope="process"))
anyio.run(lambda: main(87, command="no-such-program", scope="process", max_processes=43))
"""


def test_sessions_that_would_wait_for_descriptors_are_named_at_the_start() -> None:
    done = subprocess.run([sys.executable, "-c", FEW], capture_output=True, text=True, check=True, timeout=60)
    lines = [line for line in done.stdout.splitlines() if "few_descriptors" in line or line == "there"]
    needed = [found and int(found[1]) for found in (re.search(r"needed=(\d+)", line) for line in lines)]
    assert needed == [None, 302, None, None, None, 304, None, None], done.stdout


def test_the_sweeper_looks_at_all_processes_once_for_many_connections_that_ended() -> None:
    program = f"""
    import os, runpy
    looks, listed = [], os.listdir
    os.listdir = lambda path: looks.append(path) or listed(path)
    try:
        runpy.run_path({str(SWEEPER)!r}, run_name="__main__")
    finally:
        print(len(looks))
    """
    argv = [sys.executable, "-I", "-S", "-c", textwrap.dedent(program), str(os.getpid()), "token"]
    marks = "".join(f"token.{number}\n" for number in range(500))
    done = subprocess.run(argv, input=marks, capture_output=True, text=True, check=True, timeout=30)
    assert int(done.stdout) <= 4, done.stdout  # once for what came together, and once at the end


SESSIONS = """
import anyio
from mcp_rollout import Gateway, GatewayConfig
from mcp_rollout.gateway.leases import opening
from lab.benchmarks.echo_server import http_server

opening.http_posts_at_once = lambda: 4


async def main():
    async with http_server() as url:
        entry = {"url": url, "required": True, "scope": "session"}
        async with Gateway(GatewayConfig.model_validate({"servers": {"world": entry}})) as gateway:
            texts, release = [], anyio.Event()

            async def play(number):
                async with gateway.lease(trajectory=f"t{number}", task=None, seed=1) as session:
                    texts.append((await session.call("echo", {"text": str(number)})).text)
                    if len(texts) == 12:
                        release.set()
                    await release.wait()  # so that all connections are open at a time

            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    for number in range(12):
                        tasks.start_soon(play, number)
    print(*sorted(texts, key=int))


anyio.run(main)
"""


def test_more_connections_than_posts_at_a_time_do_not_wait_for_each_others_subscriptions() -> None:
    """A connection of 2026-07-28 has a subscription for as long as it lives; it must not take a post's slot."""
    done = subprocess.run([sys.executable, "-c", SESSIONS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1].split() == [str(number) for number in range(12)]
