"""Bytes of servers and of clients, mangled and cut anywhere: read as what they are, or refused as documented."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from mangling import JSON, cut, mangled

from mcp_rollout.gateway.transport.http_answer import EventStream, HttpAnswer, HttpFault
from mcp_rollout.gateway.transport.messages import parse_message, read_json, read_line
from mcp_rollout.mcp_wire.http_connections import Connections
from mcp_rollout.mcp_wire.http_request import DirectAnswer, Request
from mcp_rollout.mcp_wire.http_server import protocol
from mcp_rollout.mcp_wire.lines import LineSplitter, Oversize

MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "id": st.integers(-9, 9) | st.text(max_size=4)},
    optional={"result": JSON, "error": JSON, "method": st.text(max_size=8), "params": JSON, "other": JSON},
)
TEXTS = st.builds(lambda value, ascii: json.dumps(value, ensure_ascii=ascii).encode(), MESSAGES, st.booleans())
MARKS = (b"{", b"}", b'"', b"\\ud800", b"\\", b",", b"[" * 300, b"1" * 5000, b"\xff", b"NaN", b"1e999", b"\n")


@given(MESSAGES, st.booleans())
def test_a_message_is_read_as_it_was_written(message: dict[str, object], ascii: bool) -> None:
    assert read_json(json.dumps(message, ensure_ascii=ascii).encode()) == message


@given(mangled(TEXTS, MARKS) | st.binary())
def test_a_line_is_a_message_or_none_and_no_line_raises(line: bytes) -> None:
    found = read_line(line)
    assert found is None or json.dumps(found).encode()
    if found is not None:
        parse_message(found)
    try:
        assert isinstance(read_json(line), dict)
    except ValueError:
        pass


@given(st.data(), st.lists(st.binary(max_size=30)), st.integers(5, 40))
def test_lines_are_the_same_in_any_pieces_and_none_is_kept_beyond_the_limit(
    data: st.DataObject, lines: list[bytes], limit: int
) -> None:
    whole = b"\n".join(lines) + b"\n"
    splitter = LineSplitter(limit)
    found = [line for piece in data.draw(cut(whole)) for line in splitter.feed(piece)]
    expected = whole.split(b"\n")[:-1]
    assert len(found) == len(expected)
    for line, read in zip(expected, found, strict=True):
        assert (read.size, len(line) > limit) == (len(line), True) if isinstance(read, Oversize) else read == line


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ANSWERS = (
    HEAD + b"Content-Length: 4\r\n\r\nbody",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nbod\r\n1;x=y\r\ny\r\n0\r\nX: y\r\n\r\n",
    b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + HEAD + b"Connection: close\r\n\r\nbody",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.0 401 Nope\r\nWWW-Authenticate: Bearer\r\nContent-Length: 0\r\n\r\n",
)
HTTP = (
    b"\r\n",
    b"\n",
    b"\r",
    b": ",
    b"Content-Length: 9\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"\0",
    b"ffffffff\r\n",
    b"HTTP/1.1 ",
)


def outcome(pieces: list[bytes]) -> tuple[object, ...]:
    answer, taken = HttpAnswer(100), b""
    try:
        for piece in pieces:
            # Line ends behind an answer are nothing if they come with it; later ones end its connection.
            if answer.complete and not piece.strip(b"\r\n"):
                continue
            answer.feed(piece)
            assert len(answer.body) <= 100
        answer.end() if not answer.complete else None
    except HttpFault as fault:
        return (fault.broke,)
    taken = answer.take()
    return answer.status, answer.headers, taken, answer.complete, answer.reusable


@given(mangled(st.sampled_from(ANSWERS), HTTP), st.data())
def test_an_answer_is_the_same_or_refused_alike_in_any_pieces(whole: bytes, data: st.DataObject) -> None:
    pieces = [piece for piece in data.draw(cut(whole)) if piece]
    assert outcome(pieces) == outcome([whole] if whole else [])


FIELDS = st.sampled_from([*[b"data"] * 5, b"event", b"id", b"retry", b"", b"x", b"dat\xff"])
VALUES = st.sampled_from([b"", b":", b": ", b":7", b": message", b":  x", b":\0", ": é".encode(), b"::"])
ENDS = st.sampled_from([b"\n", b"\r", *[b"\r\n"] * 3, b"\n\n", b"\r\n\r\n", b"\r\r", b""])
EVENT = st.lists(st.tuples(FIELDS, VALUES, ENDS).map(b"".join), min_size=2).map(b"".join)


def events_of(text: bytes) -> tuple[list[bytes], str, float | None]:
    """Data, last id and retry of a stream, line by line as the standard has it."""
    found, fields, identity, last, retry = list[bytes](), dict[str, list[bytes]](), b"", b"", None
    for line in re.split(rb"\r\n|\r|\n", text)[:-1]:
        if not line:
            last = identity
            if (joined := b"\n".join(fields.get("data", []))) and fields.get("event", [b""])[-1] in (b"", b"message"):
                found.append(joined)
            fields = {}
            continue
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"id" and b"\0" not in value:
            identity = value
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            retry = int(value) / 1000
        elif name in (b"data", b"event"):
            fields.setdefault(name.decode(), []).append(value)
    return found, last.decode("utf-8", "replace"), retry


@given(EVENT, st.data())
def test_an_event_stream_is_read_as_the_standard_has_it_in_any_pieces(text: bytes, data: st.DataObject) -> None:
    stream = EventStream(10_000)
    # What follows a carriage return decides whether the line has ended with it.
    text = text.removesuffix(b"\r")
    found = [event for piece in data.draw(cut(text)) for event in stream.feed(piece)]
    assert (found, stream.last_id, stream.retry_s) == events_of(text)


class Site:
    """Answers every request with the length of its body."""

    def admit(self, request: Request) -> None: ...

    def may_answer(self, request: Request) -> bool:
        return True

    async def answer(self, request: Request) -> bool:
        request.respond(DirectAnswer(200, b"%d" % len(request.body)))
        return True


async def _application(scope: object, receive: object, send: object) -> None:
    raise AssertionError("every request is answered directly")


REQUEST = b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[asyncio.Runner, int]]:
    """A server that runs whenever the runner does, and its port."""
    with asyncio.Runner() as runner:
        http = protocol(Site(), Connections(receive_s=30, unadmitted=100), direct_bytes=1 << 20)
        config = uvicorn.Config(_application, port=0, http=http, lifespan="off", ws="none", log_config=None)
        running = uvicorn.Server(config)
        config.load()
        running.lifespan = config.lifespan_class(config)
        runner.run(running.startup())
        yield runner, running.servers[0].sockets[0].getsockname()[1]
        runner.run(running.shutdown())


async def _sent(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@given(
    mangled(
        st.sampled_from([REQUEST, REQUEST * 2, REQUEST.replace(b"POST", b"GET")]),
        (*HTTP, REQUEST, b"Expect: 100-continue\r\n"),
    )
)
def test_any_head_is_answered_or_ends_its_connection_and_the_next_request_is_answered(
    server: tuple[asyncio.Runner, int], data: bytes
) -> None:
    runner, port = server
    said = runner.run(_sent(port, data))
    assert said == b"" or re.match(rb"HTTP/1\.1 [2-5]\d\d ", said.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n"))
    assert runner.run(_sent(port, REQUEST)).startswith(b"HTTP/1.1 200 ")
