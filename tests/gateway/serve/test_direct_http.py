"""Requests as bytes: those read on the direct path, and those that uvicorn reads, have the same answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from served import served

from gateway import GatewayConfig

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
