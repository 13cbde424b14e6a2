"""`mcp_wire`: it stays small and below both sides of a connection; its streams are filled by callbacks."""

from __future__ import annotations

import ast
import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest

from mcp_wire.streams import Inbox

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[1]


def imports(path: Path) -> set[str]:
    """Modules that a file imports, and what it takes from them as `module.name`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


async def test_it_imports_little() -> None:
    # The last two parse HTTP/1.1: answers and requests.
    allowed = {"mcp_wire", "mcp_types", "pydantic_core", "httptools", "uvicorn", *sys.stdlib_module_names}
    assert {name.split(".")[0] for path in (ROOT / "mcp_wire").glob("*.py") for name in imports(path)} <= allowed


async def test_more_than_one_side_imports_each_of_its_modules() -> None:
    sides = {path.stem: set[str]() for path in (ROOT / "mcp_wire").glob("*.py") if path.stem != "__init__"}
    for package in ("gateway", "mcp_servers"):
        for path in (ROOT / package).rglob("*.py"):
            # `serve` beside the rest of the gateway: what it answers are other clients.
            side = "serve" if path.is_relative_to(ROOT / "gateway" / "serve") else package
            for name in imports(path):
                module = name.removeprefix("mcp_wire.").split(".")[0]
                if name.startswith("mcp_wire.") and module in sides:
                    sides[module].add(side)
    assert {module for module, users in sides.items() if len(users) < 2} == set()


@pytest.fixture
async def pipe() -> AsyncGenerator[asyncio.ReadTransport]:
    reads, writes = os.pipe()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(asyncio.Protocol, os.fdopen(reads, "rb", 0))
    yield transport
    transport.close()
    os.close(writes)


async def test_a_reader_that_falls_behind_pauses_the_source_until_little_is_left(pipe: asyncio.ReadTransport) -> None:
    inbox = Inbox[int]()
    inbox.source = pipe
    for number in range(1001):
        assert pipe.is_reading()
        inbox.put(number)
    assert not pipe.is_reading()
    for number in range(902):
        assert not pipe.is_reading()
        assert await inbox.receive() == number
    assert await inbox.receive() == 902 and pipe.is_reading()


async def test_a_source_that_is_held_is_read_again_once_both_reasons_are_over(pipe: asyncio.ReadTransport) -> None:
    inbox = Inbox[int]()
    inbox.hold(True)
    inbox.source = pipe
    inbox.hold(True)  # the first time there was nothing to pause
    assert not pipe.is_reading()
    for number in range(1001):
        inbox.put(number)
    inbox.hold(False)
    assert not pipe.is_reading()
    for _ in range(1001):
        await inbox.receive()
    assert pipe.is_reading()


async def test_what_has_arrived_is_received_after_the_end_and_nothing_else() -> None:
    inbox = Inbox[str]()
    inbox.put("before")
    inbox.close()
    inbox.put("after")
    assert [item async for item in inbox] == ["before"]


async def test_a_waiting_reader_gets_an_item_and_the_end() -> None:
    inbox, found = Inbox[str](), list[str]()

    async def read() -> None:
        found.extend([item async for item in inbox])

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            inbox.put("late")
            await anyio.wait_all_tasks_blocked()
            inbox.close()
    assert found == ["late"]
