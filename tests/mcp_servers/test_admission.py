"""A kit server over HTTP: who reaches it, and how much a connection without a token may hold, for how long."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import pytest
from odd_requests import answer_or_end, odd_request
from programs import listening_program
from raw_clients import ENVELOPE, MODERN, RawHttp, call, raw_http, request

from mcp_rollout import Gateway, GatewayConfig

pytestmark = pytest.mark.anyio

TOKEN = "0123456789abcdef0123"
PROGRAM = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parents[1] / "support")!r}]
import both_paths_server
import mcp_rollout.mcp_servers.kit.direct.http as http
http.RECEIVE_S, http.MOST_UNADMITTED, http._SWEEP_S = float(sys.argv[2]), int(sys.argv[3]), 0.01
both_paths_server.main(both_paths_server.create_server(), arguments=["--http", sys.argv[1]])
"""


@asynccontextmanager
async def kit(
    host: str = "0.0.0.0", *, token: str = TOKEN, receive_s: float = 30, unadmitted: int = 4096, **env: str
) -> AsyncIterator[int]:
    def command(port: int) -> list[str]:
        return [sys.executable, "-c", PROGRAM, f"{host}:{port}", str(receive_s), str(unadmitted)]

    at = "127.0.0.1" if host == "0.0.0.0" else host
    async with listening_program(command, env={"MCP_SERVER_TOKEN": token, **env}, host=at) as port:
        yield port


async def everything(port: int, *sent: bytes) -> bytes:
    """All that one connection is answered, until the server closes it."""
    found = b""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        with anyio.fail_after(30), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            for part in sent:
                await stream.send(part)
            while True:
                found += await stream.receive()
    return found


DISCOVER = request("open", "server/discover", {"_meta": ENVELOPE})


ADMITTED = {"authorization": f"Bearer {TOKEN}"}
HEADERS: list[tuple[dict[str, str], int]] = [
    (ADMITTED, 200),
    ({"authorization": f"bearer  {TOKEN}"}, 200),
    ({**ADMITTED, "host": "shop.test:80"}, 200),
    ({}, 401),
    ({"authorization": f"Bearer {TOKEN}x"}, 401),
    ({"authorization": f"Basic {TOKEN}"}, 401),
    ({"authorization": TOKEN}, 401),
    ({**ADMITTED, "host": "evil.example"}, 421),
    ({**ADMITTED, "host": "shop.test:80:evil"}, 421),
    ({**ADMITTED, "origin": "http://evil.example"}, 403),
]


async def test_only_the_token_admits_at_an_address_of_other_machines() -> None:
    """Whatever is asked, harness tools too, on the direct path and the SDK's, in plain framing and in chunks."""
    asked = [DISCOVER, call(1, "add", {"a": 1}, MODERN), call(2, "reset", {"task": "t", "seed": 1}, MODERN)]
    async with kit(MCP_SERVER_HOSTS="other.test shop.test") as port:
        for (headers, status), message in product(HEADERS, asked):
            with anyio.fail_after(30):
                async with raw_http(port) as client:
                    assert (await client.ask(message, **headers)).status == status, headers
                async with raw_http(port) as client:
                    chunked: dict[str, str | None] = {"content_length": None, "transfer_encoding": "chunked"}
                    head, _, body = client.post(message, **headers, **chunked).partition(b"\r\n\r\n")
                    await client.stream.send(head + b"\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
                    assert (await client.answer()).status == status, headers
        entry: dict[str, Any] = {"url": f"http://127.0.0.1:{port}/mcp", "headers": ADMITTED, "required": True}
        async with Gateway(GatewayConfig.model_validate({"servers": {"kit": entry}})) as gateway:
            async with gateway.lease(trajectory="t", task=None, seed=1) as session:
                assert (await session.call("add", {"a": 1})).text == "2"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
async def test_a_loopback_address_admits_only_names_of_this_machine_before_it_reads_a_body(host: str) -> None:
    async with kit(host, token="") as port:
        own = f"{host}:{port}"
        named = [
            (own, None, 200),
            ("localhost:1", None, 200),
            ("evil.example", None, 421),
            (own, "http://evil.example", 403),
        ]
        for name, origin, status in named:
            async with await anyio.connect_tcp(host, port) as stream:
                client = RawHttp(stream, port)
                head, _, body = client.post(DISCOVER, host=name, origin=origin).partition(b"\r\n\r\n")
                with anyio.fail_after(30):
                    await stream.send(head + b"\r\n\r\n" + body * (status == 200))
                    assert (await client.answer()).status == status, name


async def test_the_token_is_not_in_the_environment_of_what_a_server_starts() -> None:
    from mcp_rollout.mcp_servers.kit.direct.http import Admission

    variables = {"MCP_SERVER_TOKEN": TOKEN, "PATH": "/bin"}
    Admission("0.0.0.0", variables)
    assert variables == {"PATH": "/bin"}
    with pytest.raises(ValueError, match="shorter than 16"):
        Admission("127.0.0.1", {"MCP_SERVER_TOKEN": "short"})


def rss_mib(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) // 1024 if found else 0


async def test_the_body_of_a_wrong_token_is_not_kept() -> None:
    """Of 30 requests with 4 MB each, all but the last byte of which arrive."""
    body, pieces = 4_000_000, [b" " * 100_000] * 39
    head = b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer wrong\r\ncontent-length: %d\r\n\r\n" % body
    async with kit() as port, AsyncExitStack() as stack:
        pid = owner_of(port)
        before = rss_mib(pid)
        for _ in range(30):
            stream = await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
            with anyio.fail_after(30):
                await stream.send(head)
                assert (await stream.receive()).startswith(b"HTTP/1.1 401 ")
                for piece in pieces:
                    await stream.send(piece)
        assert rss_mib(pid) - before < 40


def owner_of(port: int) -> int:
    """The process whose command line has this port."""
    for found in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if f":{port}\0".encode() in found.read_bytes() and int(found.parent.name):
                return int(found.parent.name)
    raise AssertionError("no process serves this port")


async def test_connections_without_a_token_are_bounded_and_those_with_one_go_on() -> None:
    async with kit(unadmitted=4) as port, AsyncExitStack() as stack:
        with anyio.fail_after(60):
            admitted = await stack.enter_async_context(raw_http(port))
            assert (await admitted.ask(DISCOVER, **ADMITTED)).status == 200
            silent = [await stack.enter_async_context(raw_http(port)) for _ in range(9)]
            for client in silent[:5]:
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await client.stream.receive()
            for client in (admitted, *silent[5:]):
                assert (await client.ask(DISCOVER, **ADMITTED)).status == 200


async def test_half_a_request_ends_with_its_connection_and_any_head_is_answered_or_closed() -> None:
    whole = b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 2\r\n\r\n{}"
    chunked = b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    halves = [b"", b"POST", whole[:30], whole[:-1], chunked[:30], chunked[:-1], chunked[:-9], whole + whole[:-1]]
    halves += [chunked + chunked[:-1], chunked + whole[:30]]
    rng, body = random.Random(5), json.dumps(DISCOVER).encode()

    async def check(port: int, half: bytes) -> None:
        answered = half.startswith(whole) or half.startswith(chunked)
        assert (await everything(port, half)).count(b"HTTP/1.1 400 ") == answered, half

    async with kit("127.0.0.1", token="", receive_s=0.3) as port, anyio.create_task_group() as tasks:
        for half in halves:
            tasks.start_soon(check, port, half)
        for number in range(150):
            tasks.start_soon(answer_or_end, port, odd_request(rng, number, body))
