"""What a failed start leaves behind: nothing, and it counts until it is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
import structlog

from lab.benchmarks.server_programs import sweepers_of
from mcp_rollout import Gateway, GatewayConfig
from mcp_rollout.gateway.config.models import LeaseDirConfig
from mcp_rollout.gateway.errors import ConnectTimeout, ServerUnavailable
from mcp_rollout.gateway.leases.janitor import Janitor
from mcp_rollout.gateway.leases.pool import BundlePool
from mcp_rollout.gateway.leases.taking import Bundle

pytestmark = pytest.mark.anyio


async def test_a_start_that_failed_counts_as_a_process_until_it_has_ended() -> None:
    begun, ended = 0, anyio.Event()

    async def open_bundle(bundle: Bundle) -> None:
        nonlocal begun
        begun += 1
        bundle.directory = Path("begun")
        if begun == 1:
            raise ServerUnavailable("it did not start", server="world")

    async def discard(bundle: Bundle) -> None:
        assert bundle.directory == Path("begun")
        await ended.wait()

    async with anyio.create_task_group() as tasks:
        first = Bundle()
        options: dict[str, Any] = {"open_bundle": open_bundle, "discard": discard, "first": first, "tasks": tasks}
        pool = BundlePool(("world",), most=2, **options)
        assert await pool.take(reset=False) is first
        with pytest.raises(ServerUnavailable):
            await pool.take(reset=False)
        with anyio.move_on_after(0.1):
            await pool.take(reset=False)
        assert begun == 1
        ended.set()
        with anyio.fail_after(20):
            await pool.take(reset=False)
        assert begun == 2


async def test_what_ends_after_the_last_sweep_is_neither_reported_nor_written_anywhere(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        async with Janitor(None) as janitor:
            janitor.ended(janitor.mark())
        opened = [(tmp_path / f"{number}").open("w+") for number in range(8)]  # one has the number of the pipe
        janitor.ended(janitor.mark())
        assert [file.read() for file in opened] == [""] * 8
        for file in opened:
            file.close()
    assert logs == []


async def test_a_sweeper_that_was_killed_is_reported_where_another_server_starts() -> None:
    with structlog.testing.capture_logs() as logs:
        async with Janitor(None) as janitor:
            (sweeper,) = sweepers_of(os.getpid())
            ended = psutil.Process(sweeper)
            ended.kill()
            ended.wait(5)
            janitor.ended("none")
            assert logs == []
            janitor.mark()
            janitor.mark()
    assert [each["event"] for each in logs] == ["janitor.gone"]


async def test_a_lease_directory_that_was_only_half_copied_is_removed(tmp_path: Path) -> None:
    template, parent = tmp_path / "template", tmp_path / "leases"
    template.mkdir(), parent.mkdir()
    (template / "fine.txt").write_text("fine")
    os.mkfifo(template / "pipe")  # which cannot be copied
    async with Janitor(LeaseDirConfig(template=str(template), parent=str(parent))) as janitor:
        (root,) = parent.iterdir()
        with pytest.raises(OSError, match="named pipe"):
            await janitor.directory()
        with anyio.fail_after(20):
            while list(root.glob("lease-*")):  # noqa: ASYNC110  # another process removes it
                await anyio.sleep(0.01)


def nested(place: Path) -> Path:
    """Directories deeper than Python's stack."""
    subprocess.run(["mkdir", "-p", place / "/".join(["a"] * 1100)], check=True)
    return place


async def test_directories_deeper_than_pythons_stack_are_removed_and_those_after_them(tmp_path: Path) -> None:
    async with Janitor(LeaseDirConfig(parent=str(tmp_path))) as janitor:
        for _ in range(2):
            made = nested(await janitor.directory())
            janitor.emptied(made)
            with anyio.fail_after(30):
                while made.exists():  # noqa: ASYNC110  # another process removes it
                    await anyio.sleep(0.01)


async def test_a_deep_directory_of_a_worker_that_was_killed_keeps_no_gateway_from_starting(tmp_path: Path) -> None:
    async with Janitor(LeaseDirConfig(parent=str(tmp_path))):
        (name,) = os.listdir(tmp_path)
        stale = tmp_path / f"{name[:-8]}deadbeef"
        nested(stale), (stale / ".lock").touch()
        async with Janitor(LeaseDirConfig(parent=str(tmp_path))):
            assert not stale.exists()


HOARD = """
import sys, time
kept = []
try:
    while True:
        kept.append(bytearray(1 << 20))
except MemoryError:
    sys.stderr.write(sys.argv[1])
    sys.stderr.flush()
if sys.argv[2] == "hang":
    time.sleep(60)
sys.exit(1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits are set by the guard, on Linux")
@pytest.mark.parametrize(("words", "then"), [("MemoryError", "hang"), ("", "hang"), ("MemoryError", "exit")])
async def test_a_server_that_its_memory_limit_keeps_from_starting_is_said_to_be(words: str, then: str) -> None:
    args = ["-I", "-S", "-c", HOARD, words, then]
    entry: dict[str, Any] = {"command": sys.executable, "args": args, "max_memory_mb": 64, "start_timeout_s": 3}
    async with Gateway(GatewayConfig.model_validate({"servers": {"world": entry}})) as gate:
        failure = gate.failures["world"]
    assert type(failure) is (ConnectTimeout if then == "hang" else ServerUnavailable)
    assert "it used up its 64 MB of memory, the limit in its entry" in str(failure)
    assert "start_timeout_s" not in str(failure)


SECRET = "swordfish-0123456789"


@pytest.mark.parametrize("before", [0, 290, 300 - len(SECRET) // 2])
@pytest.mark.parametrize("after", [0, 8192 - len(SECRET) // 2, 8192 - 3])
async def test_half_a_secret_in_a_servers_last_words_is_not_repeated_either(before: int, after: int) -> None:
    program = f"import os, sys; sys.exit('-' * {before} + os.environ['API_KEY'] + '.' * {after})"
    entry = {"command": sys.executable, "args": ["-I", "-S", "-c", program], "env": {"API_KEY": SECRET}}
    async with Gateway(GatewayConfig.model_validate({"servers": {"world": entry}})) as gate:
        said = str(gate.failures["world"])
    assert "stderr ends" in said
    pieces = {SECRET[start : start + 4] for start in range(len(SECRET) - 3)}
    assert not any(piece in said for piece in pieces)
