"""Requests as bytes: those that are answered directly, and those of the ASGI application, have the same answers."""

from __future__ import annotations

import json
import os
import random
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from odd_requests import answer_or_end, odd_request
from served import TOKEN, RawClient, served

from mcp_rollout import GatewayConfig

Entries = Callable[..., dict[str, Any]]
Config = Callable[..., GatewayConfig]
pytestmark = pytest.mark.anyio
ASKED = {"jsonrpc": "2.0", "id": 7, "method": "mcp-rollout/leases/renew", "params": {"leases": []}}
BODY = json.dumps(ASKED).encode()


def request(*headers: str, body: bytes = BODY, line: str = "POST /mcp HTTP/1.1") -> bytes:
    return "\r\n".join([line, "Host: 127.0.0.1", *headers, "", ""]).encode() + body


PLAIN = request(f"Content-Length: {len(BODY)}")
CHUNKED = request("Transfer-Encoding: chunked", body=b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY))


async def answers(url: str, sent: list[bytes], number: int) -> list[tuple[int, bytes]]:
    """Status and body of so many answers on one connection, to which these bytes are sent one after the other."""
    address = urlsplit(url)
    found: list[tuple[int, bytes]] = []
    async with await anyio.connect_tcp(address.hostname or "", address.port or 0) as stream:
        for part in sent:
            await stream.send(part)
            await anyio.lowlevel.checkpoint()
        data = b""
        with anyio.fail_after(20):
            while len(found) < number:
                head, gap, rest = data.partition(b"\r\n\r\n")
                length = next((int(h[15:]) for h in head.lower().split(b"\r\n") if h[:15] == b"content-length:"), 0)
                if gap and len(rest) >= length:
                    found.append((int(head.split()[1]), rest[:length]))
                    data = rest[length:]
                else:
                    data += await stream.receive()
    return found


@pytest.mark.parametrize(
    ("sent", "number"),
    [
        ([PLAIN], 1),
        ([bytes([byte]) for byte in PLAIN], 1),
        ([PLAIN * 3], 3),
        ([CHUNKED], 1),
        ([PLAIN, CHUNKED, PLAIN], 3),
        ([CHUNKED + PLAIN + CHUNKED + PLAIN], 4),
        ([request(f"Content-Length: {len(BODY)}", "Connection: keep-alive"), PLAIN], 2),
        ([request(f"content-length:{len(BODY)}", "X-A: 1", "X-A: 2")], 1),
    ],
)
async def test_requests_in_any_pieces_and_framing_are_answered(
    mini: Entries, config: Config, sent: list[bytes], number: int
) -> None:
    async with served(config(store=mini("get"))) as running:
        expected = (200, b'{"jsonrpc":"2.0","id":7,"result":{"lost":[],"resultType":"complete"}}')
        assert await answers(running.url, sent, number) == [expected] * number


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request(f"Content-Length: {len(BODY)}", f"Content-Length: {len(BODY) + 1}"), 400),
        (request("Content-Length: -1"), 400),
        (request("Transfer-Encoding: chunked", body=b"5\r\n{}\r\n0\r\n\r\n"), 400),
        (request(f"Content-Length: {len(BODY)}", "Host: 127.0.0.1"), 400),
        (request("X-Long: " + "x" * 33_000, body=b"")[:-4], 431),
        (request("Content-Length: 3000", body=b" " * 3000), 413),
        (request(line="PUT /mcp HTTP/1.1", body=b""), 405),
        (request(line="GET /elsewhere HTTP/1.1", body=b""), 404),
        (PLAIN.replace(b"Host: 127.0.0.1", b"Host: evil.example"), 403),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 not HTTP\r\n\r\n", 400),
    ],
)
async def test_what_is_unusual_or_wrong_is_refused(mini: Entries, config: Config, sent: bytes, status: int) -> None:
    async with served(config(store=mini("get")), max_request_bytes=2000) as running:
        assert [found for found, _ in await answers(running.url, [sent], 1)] == [status]


def post(*headers: str, token: str = "", body: bytes = BODY) -> bytes:
    given = [f"Authorization: Bearer {token}"] if token else []
    return request(f"Content-Length: {len(body)}", *given, *headers, body=body)


async def everything(url: str, sent: bytes) -> bytes:
    """All that one connection is answered, until the server closes it."""
    address, found = urlsplit(url), b""
    async with await anyio.connect_tcp(address.hostname or "", address.port or 0) as stream:
        with anyio.fail_after(20), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            await stream.send(sent)
            while True:
                found += await stream.receive()
    return found


async def test_requests_sent_ahead_are_bounded_and_refused_in_their_turn(mini: Entries, config: Config) -> None:
    async with served(config(store=mini("get")), tokens=(TOKEN,)) as running:
        for sent, statuses in (
            (post(token=TOKEN) * 2 + post(token="wrong") + post(token=TOKEN), [200, 200, 401]),
            (post(token=TOKEN) * 2 + b"not HTTP\r\n\r\n", [200, 200, 400]),
            (post(token=TOKEN) * 80, [200] * 65 + [429]),
        ):
            answer = await everything(running.url, sent)
            assert [int(found[:3]) for found in answer.split(b"HTTP/1.1 ")[1:]] == statuses


async def test_a_stream_ends_with_its_connection_whatever_was_sent_ahead(mini: Entries, config: Config) -> None:
    client = {"capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}, "protocolVersion": "2025-11-25"}
    async with served(config(store=mini("get"))) as running:
        address, kinds = urlsplit(running.url), {"accept": "application/json, text/event-stream"}
        begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
        session = (await RawClient(running.url).post(begin, **kinds)).headers["mcp-session-id"]
        given = f"Mcp-Session-Id: {session}", "Mcp-Protocol-Version: 2025-11-25", "Accept: text/event-stream"
        stream = request(*given, line="GET /mcp HTTP/1.1", body=b"")
        with anyio.fail_after(20):
            for _ in range(2):
                status = b"409"
                # A session has one stream at a time.
                while status == b"409":
                    async with await anyio.connect_tcp(address.hostname or "", address.port or 0) as connection:
                        await connection.send(stream + PLAIN)
                        status = (await connection.receive()).split()[1]
                assert status == b"200"


async def test_a_header_after_the_body_counts_for_nothing(mini: Entries, config: Config) -> None:
    client = {"capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}, "protocolVersion": "2025-11-25"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}).encode()
    kinds = "Content-Type: application/json", "Accept: application/json, text/event-stream", "Connection: close"
    for trailer in (b"", b"Mcp-Session-Id: unknown\r\n"):
        chunks = b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(body), body, trailer)
        async with served(config(store=mini("get"))) as running:
            answer = await everything(running.url, request("Transfer-Encoding: chunked", *kinds, body=chunks))
        assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("framing", ["Content-Length: 8000000", "Transfer-Encoding: chunked"])
async def test_a_wrong_token_is_answered_before_the_body_arrives(mini: Entries, config: Config, framing: str) -> None:
    async with served(config(store=mini("get")), tokens=(TOKEN,), receive_s=0.3) as running:
        for head in (request(framing, body=b""), request(framing, "Authorization: Bearer wrong", body=b"")):
            answer = await everything(running.url, head)  # until it is closed, although the body never arrives
            assert answer.startswith(b"HTTP/1.1 401 ")


async def test_the_body_of_a_wrong_token_is_not_kept(mini: Entries, config: Config) -> None:
    async with served(config(store=mini("get")), tokens=(TOKEN,)) as running:
        address, size, piece = urlsplit(running.url), 6 << 20, b" " * (64 << 10)
        async with await anyio.connect_tcp(address.hostname or "", address.port or 0) as stream:
            with anyio.fail_after(20):
                await stream.send(request(f"Content-Length: {size}", "Authorization: Bearer wrong", body=b""))
                assert (await stream.receive()).startswith(b"HTTP/1.1 401 ")
                tracemalloc.start()
                try:
                    for _ in range(size // len(piece) - 1):
                        await stream.send(piece)
                    most = tracemalloc.get_traced_memory()[1]
                finally:
                    tracemalloc.stop()
                await stream.send(piece)
                with pytest.raises(anyio.EndOfStream):
                    await stream.receive()
    assert most < 3 << 20


@pytest.mark.parametrize(
    ("half", "answered"),
    [
        (b"", 0),
        (b"POST", 0),
        (b"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n", 0),
        (PLAIN[:-1], 0),
        (CHUNKED[:-1], 0),
        (CHUNKED[:-40], 0),
        (request(line="GET /health HTTP/1.1", body=b"")[:-2], 0),
        (request("Content-Length: 5", line="GET /health HTTP/1.1", body=b""), 1),
        (PLAIN + CHUNKED + PLAIN[:-1], 2),
    ],
)
async def test_half_a_request_ends_with_its_connection(
    mini: Entries, config: Config, half: bytes, answered: int
) -> None:
    async with served(config(store=mini("get")), receive_s=0.2) as running:
        assert (await everything(running.url, half)).count(b"HTTP/1.1 200 ") == answered


async def test_connections_without_a_token_are_bounded_and_those_with_one_go_on(mini: Entries, config: Config) -> None:
    async with served(config(store=mini("get")), tokens=(TOKEN,), unadmitted=3) as running:
        address = urlsplit(running.url)
        async with AsyncExitStack() as stack:

            async def connected() -> Any:
                stream = await anyio.connect_tcp(address.hostname or "", address.port or 0)
                return await stack.enter_async_context(stream)

            with anyio.fail_after(20):
                admitted, silent = await connected(), [await connected()]
                await admitted.send(post(token=TOKEN))
                assert (await admitted.receive()).startswith(b"HTTP/1.1 200 ")
                silent += [await connected() for _ in range(8)]
                for stream in silent[:6]:
                    with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                        await stream.receive()
                for stream in (admitted, *silent[6:]):
                    await stream.send(post(token=TOKEN))
                    assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("ends", [(b"\r\n", b"\n", b"\n\n"), (b"\r\n", b"\n", b"\n\r\n"), (b"\n", b"\n", b"\n\n")])
async def test_a_head_with_bare_line_feeds_is_refused(
    mini: Entries, config: Config, ends: tuple[bytes, bytes, bytes]
) -> None:
    first, other, last = ends
    lines = [b"Host: 127.0.0.1", b"Content-Length: %d" % len(BODY)]
    async with served(config(store=mini("get"))) as running:
        sent = b"POST /mcp HTTP/1.1" + first + other.join(lines) + last + BODY
        assert [status for status, _ in await answers(running.url, [sent], 1)] == [400]


async def test_any_head_is_answered_or_closed_in_time(mini: Entries, config: Config) -> None:
    rng = random.Random(7)
    async with served(config(store=mini("get")), receive_s=0.5) as running, anyio.create_task_group() as tasks:
        for number in range(300):
            tasks.start_soon(answer_or_end, urlsplit(running.url).port or 0, odd_request(rng, number, BODY))


def accepted_by(port: int) -> Iterator[int]:
    """Whether small packets wait for no others, for each server's side in this process of a connection to the port."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as found:
                    if found.family == socket.AF_INET and found.getsockname()[1] == port and found.getpeername():
                        yield found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_no_part_of_an_answer_waits_for_the_client_to_acknowledge_another(mini: Entries, config: Config) -> None:
    async with served(config(store=mini("get"))) as running:
        address = urlsplit(running.url)
        async with await anyio.connect_tcp(address.hostname or "", address.port or 0):
            with anyio.fail_after(60):
                while not (accepted := list(accepted_by(address.port or 0))):
                    await anyio.lowlevel.checkpoint()
            assert accepted == [1]
