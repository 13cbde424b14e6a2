"""OpenEnv servers that stall, break off, or answer too much or something else, as bare frames."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_types import Tool
from worlds import play, saying, task

from mcp_rollout.mcp_servers.kit import ToolError
from mcp_rollout.mcp_servers.openenv.server import Offer, create_server
from mcp_rollout.mcp_servers.openenv.session import Address, Answer, CapacityReached, Seen
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.types import Call

pytestmark = pytest.mark.anyio
Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def frame(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    size = len(payload)
    length = (
        bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2) if size < 1 << 16 else b"\x7f" + size.to_bytes(8)
    )
    return bytes([0x80 * final | opcode]) + length + payload


async def read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readexactly(2)
    size = head[1] & 0x7F
    if size >= 126:
        size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8))
    mask, payload = await reader.readexactly(4), await reader.readexactly(size)
    return head[0] & 0xF, bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


@asynccontextmanager
async def served(play: Play) -> AsyncIterator[str]:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(line[19:] for line in asked.split("\r\n") if line.startswith("Sec-WebSocket-Key: "))
        accepted = base64.b64encode(hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest())
        head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        writer.write(head + b"Sec-WebSocket-Accept: " + accepted + b"\r\n\r\n")
        try:
            await play(reader, writer)
        finally:
            writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_half_open_connection_is_noticed_and_a_slow_server_is_waited_for() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await read(reader))[0] == 1
        for _ in range(3):  # whoever answers pings may take as long as it likes
            opcode, payload = await read(reader)
            assert opcode == 9
            writer.write(frame(10, payload))
        writer.write(frame(1, b'{"data": {"reward": 1}}'))
        await reader.read()

    async with served(silent) as url:
        session = await Address(url=url, timeout_s=60, ping_s=0.05).open()
        for _ in range(2):
            with pytest.raises(ToolError, match=r"the session is lost: .*keepalive ping timeout"):
                await session.ask(Answer[Seen], "state")
        await session.socket.close()
    async with served(slow) as url:
        session = await Address(url=url, timeout_s=60, ping_s=0.5).open()
        assert await session.ask(Answer[Seen], "step", {}) == Seen(reward=1)
        await session.socket.close()


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"\x81\x7f" + (1 << 24 | 1).to_bytes(8), "too big"),
        (frame(1, b"no JSON"), "Invalid JSON"),
        (frame(1, b"[" * 100_000), "Invalid JSON"),
        (frame(1, b"[1]"), "the answer: Input should be an object"),
        (frame(1, b'{"type": "error", "data": {"code": ["no"], "message": "no"}}'), r"data\.code: .*valid string"),
        (frame(8, b"\x03\xe8enough"), "enough"),
        (b"", "no close frame"),
    ],
    ids=["too long", "no JSON", "deep", "a list", "no error", "closed", "cut"],
)
async def test_what_is_too_long_or_ends_the_connection_is_named(sent: bytes, problem: str) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        writer.write(sent)
        await writer.drain()

    async with served(say) as url:
        session = await Address(url=url, timeout_s=60, ping_s=20).open()
        with pytest.raises(ToolError, match=f"the session is lost: .*{problem}"):
            await session.ask(Answer[Seen], "state")
        await session.socket.close()


async def test_an_answer_that_comes_too_late_is_never_taken_for_the_next_one() -> None:
    answers = {"reset": {"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "no"}}}

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (got := await read(reader))[0] == 1:
            kind = json.loads(got[1])["type"]
            if kind in answers:
                writer.write(frame(1, json.dumps(answers[kind]).encode()))

    async with served(server) as url:
        session = await Address(url=url, timeout_s=0.2, ping_s=20).open()
        with pytest.raises(ToolError, match=r"^no$"):
            await session.ask(Answer[Seen], "reset", {})
        assert not session.lost
        for kind in ("step", "reset"):  # the first one is not answered in time
            with pytest.raises(ToolError, match=r"the session is lost: no answer within 0\.2 s"):
                await session.ask(Answer[Seen], kind, {})
        await session.socket.close()


async def test_an_answer_to_a_cancelled_request_is_never_taken_for_the_next_one() -> None:
    asked = asyncio.Event()

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        asked.set()
        while (await read(reader))[0] == 1:  # answers late: one request for each answer behind
            writer.write(frame(1, b'{"data": {"reward": 1}}'))

    async with served(server) as url:
        session = await Address(url=url, timeout_s=20, ping_s=20).open()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.ask, Answer[Seen], "step", {})
            await asked.wait()
            tasks.cancel_scope.cancel()
        with pytest.raises(ToolError, match="the session is lost: a request was cancelled"):
            await session.ask(Answer[Seen], "step", {})
        await session.socket.close()


async def test_a_full_server_is_named_with_its_capacity() -> None:
    full = {"code": "CAPACITY_REACHED", "message": "full", "active_sessions": 3, "max_sessions": 3}

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(1, json.dumps({"type": "error", "data": full}).encode()) + frame(8, b"\x03\xe8"))
        await reader.read()

    async with served(server) as url:
        session = await Address(url=url, timeout_s=20, ping_s=20).open()
        await session.socket.wait_closed()  # as its server does before anything is asked
        with pytest.raises(CapacityReached, match="holds 3 sessions at a time") as caught:
            await session.ask(Answer[Seen], "reset", {"seed": 1})
        assert caught.value.most == 3
        await session.socket.close()


def answering(*answers: Any) -> Play:
    """Gives the answers in order, each an object's `data` or the bytes of a frame, and then breaks off."""

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await read(reader)
            if not isinstance(answer, bytes):
                answer = frame(1, json.dumps({"type": "observation", "data": answer}).encode())
            writer.write(answer)
        await writer.drain()

    return server


async def played(answers: Play, traces: Path, *, tool: str = "step", texts: int = 3) -> Trace:
    """A trajectory that calls the tool in each turn."""
    async with served(answers) as url:
        offer = Offer([Tool(name=tool, input_schema={"type": "object"})], are_mcp=tool != "step", most=None)
        server = create_server(Address(url=url, timeout_s=20, ping_s=20), offer)
        steps = [hermes.write(calls=[Call(name=tool, arguments={})])] * texts
        row = task(task="openenv-train-0000", seed=0)
        return await play({"openenv": server}, saying(*steps), traces, row=row, user={"server": "openenv"})


OPENED = {"observation": {"text": "Begin."}}


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([], "no close frame"),
        ([OPENED], "no close frame"),
        ([OPENED, {"observation": {}, "reward": float("nan")}], "data.reward: Input should be a finite number"),
        ([OPENED, {"observation": {}, "reward": "much"}], "data.reward: Input should be a valid number"),
        ([OPENED, {"observation": {}, "done": "perhaps"}], "data.done: Input should be a valid boolean"),
        ([OPENED, b"\x81\x7f" + (50 << 20).to_bytes(8)], "frame with 52428800 bytes exceeds limit of 16777216 bytes"),
    ],
    ids=["closed in the reset", "closed in a step", "NaN", "reward as text", "done as text", "50 MB"],
)
async def test_a_step_without_a_meaning_withdraws_the_trajectory_and_says_what_it_was(
    answers: list[Any], said: str, tmp_path: Path
) -> None:
    trace = await played(answering(*answers), tmp_path)
    assert trace.stop_reason is StopReason.FAILED and trace.failure is not None and trace.reward is None
    assert "the session is lost: " in trace.failure.message and said in trace.failure.message
    assert len(trace.failure.message) < 500


async def test_done_without_a_reward_ends_the_trajectory_and_a_reward_may_be_a_boolean(tmp_path: Path) -> None:
    trace = await played(answering(OPENED, {"reward": True}, {"done": True}), tmp_path)
    assert trace.stop_reason is StopReason.WORLD_DONE and len(trace.turns) == 2
    assert [call.reward for turn in trace.turns for call in turn.tools] == [1.0, None]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "HTTP 404"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "action: Field required"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", "the answer: Input should be"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * ((1 << 24) + 1), "more than 16777216 bytes"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", "no answer within 0.2 s"),
        (b"", "the connection broke"),
    ],
    ids=["missing", "no action", "a list", "endless", "unfinished", "cut"],
)
async def test_a_schema_that_cannot_be_had_is_one_error(answer: bytes, said: str) -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if said.startswith("no answer"):
            await reader.read()
        writer.close()

    async with await asyncio.start_server(server, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        bound = 0.2 if said.startswith("no answer") else 20
        with pytest.raises(ToolError, match=f"^/schema: .*{said}"):
            await Address(url=url, timeout_s=bound, ping_s=20).step_tool()
