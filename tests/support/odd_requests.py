"""HTTP requests that are unusual or broken, drawn by seed; and what becomes of one."""

from __future__ import annotations

import random
from contextlib import suppress

import anyio


async def answer_or_end(port: int, sent: bytes) -> None:
    """Return once a connection is answered or closed."""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        with anyio.fail_after(30), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            await stream.send(sent)
            await stream.receive()


def odd_request(rng: random.Random, number: int, body: bytes) -> bytes:
    """A request with line ends, framing and headers drawn at random; at times cut, or with a byte changed."""
    ends = [b"\r\n", b"\n", b"\r\n", b"\r", b"\n\r", b"\r\r\n"]
    lines = [rng.choice([b"POST /mcp HTTP/1.1", b"GET /mcp HTTP/1.1", b"POST  /mcp HTTP/1.0", b"PRI * HTTP/2.0", b""])]
    pool = [b"Host: 127.0.0.1", b"Content-Length: %d" % len(body), b"Content-Length: 9", b"Content-Length: -1"]
    pool += [b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"Upgrade: websocket", b"Connection: close"]
    pool += [b"Connection: Upgrade", b" folded", b"no colon", b"X: \0", b"Accept: application/json, text/event-stream"]
    lines += rng.choices(pool, k=rng.randint(0, 6))
    sent = b"".join(line + rng.choice(ends[: 2 + number % 5]) for line in lines) + rng.choice(ends) + body
    if rng.random() < 0.3:
        sent = sent[: rng.randrange(len(sent))]
    if rng.random() < 0.3:
        place = rng.randrange(len(sent) or 1)
        sent = sent[:place] + bytes([rng.randrange(256)]) + sent[place + 1 :]
    return sent
