"""What arrives on a connection, parsed: HTTP/1.1 answers and event streams, however the bytes are cut into pieces."""

import random

import pytest

from mcp_rollout.gateway.transport.delivery import Broke
from mcp_rollout.gateway.transport.http_answer import EventStream, HttpAnswer, HttpFault

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ANSWERS: dict[str, tuple[bytes, int, bytes, bool]] = {
    "a length": (HEAD + b"Content-Length: 4\r\n\r\nbody", 200, b"body", True),
    "no body": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    "an empty body": (b"HTTP/1.1 405 Nope\r\nContent-Length: 0\r\n\r\n", 405, b"", True),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nbod\r\n1;x=y\r\ny\r\n0\r\n\r\n", 200, b"body", True),
    "trailers": (HEAD + b"transfer-encoding: Chunked\r\n\r\n4\r\nbody\r\n0\r\nX: y\r\n\r\n", 200, b"body", True),
    "bare line feeds": (b"HTTP/1.1 200\nContent-Length: 4\n\nbody", 200, b"body", True),
    "bare line feeds and chunks": (
        b"HTTP/1.1 200\ntransfer-encoding: chunked\n\n4\r\nbody\r\n0\r\n\r\n",
        200,
        b"body",
        True,
    ),
    "the last one not bare": (b"HTTP/1.1 200\nContent-Length: 6\n\r\n\r\nbody", 200, b"\r\nbody", True),
    "hints with bare line feeds": (
        b"HTTP/1.1 103 Hints\nLink: x\n\n" + HEAD + b"Content-Length: 4\r\n\r\nbody",
        200,
        b"body",
        True,
    ),
    "hints first": (
        b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + HEAD + b"Content-Length: 4\r\n\r\nbody",
        200,
        b"body",
        True,
    ),
    "an upgrade offered": (
        HEAD + b"Upgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 4\r\n\r\nbody",
        200,
        b"body",
        True,
    ),
    "no body, though a length": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n", 304, b"", True),
    "spaces behind headers": (HEAD + b"Content-Length: 4 \t\r\nX:\r\n\r\nbody", 200, b"body", True),
    "not to be kept": (HEAD + b"Connection: close\r\nContent-Length: 4\r\n\r\nbody", 200, b"body", False),
    "of HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nbody", 200, b"body", False),
    "a length and chunks": (
        HEAD + b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
        200,
        b"body",
        False,
    ),
}


def pieces(data: bytes, rng: random.Random) -> list[bytes]:
    cuts = sorted(rng.sample(range(1, len(data)), rng.randint(0, len(data) - 1)))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_the_same_in_whatever_pieces_it_arrives(name: str) -> None:
    data, status, body, reusable = ANSWERS[name]
    rng = random.Random(name)
    for _ in range(200):
        answer, taken = HttpAnswer(100), b""
        for piece in pieces(data, rng):
            assert not answer.complete
            answer.feed(piece)
            if answer.status:
                taken += answer.take()
        assert (answer.status, taken, answer.reusable, answer.complete) == (status, body, reusable, True)


def test_a_long_body_behind_bare_line_feeds_may_arrive_with_them() -> None:
    answer = HttpAnswer(100_000)
    answer.feed(b"HTTP/1.1 200\ntransfer-encoding: chunked\n\n11170\r\n" + b"x" * 70_000 + b"\r\n0\r\n\r\n")
    assert answer.complete and len(answer.take()) == 70_000


def test_a_body_without_a_length_ends_with_its_connection_and_no_other_does() -> None:
    answer = HttpAnswer(100)
    answer.feed(HEAD + b"\r\nbody")
    answer.end()
    assert answer.complete and answer.take() == b"body" and not answer.reusable
    for cut in (
        b"",
        HEAD,
        HEAD + b"Content-Length: 9\r\n\r\nbody",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody",
    ):
        answer = HttpAnswer(100)
        answer.feed(cut)
        with pytest.raises(HttpFault, match="disconnected") as caught:
            answer.end()
        assert caught.value.broke is Broke.LINE


@pytest.mark.parametrize(
    ("data", "broke"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", Broke.LINE),
        (b"HTTP/2 200\r\n\r\n", Broke.LINE),
        (b"HTTP/1.1 101 Switching\r\n\r\n", Broke.LINE),
        (HEAD + b"no header\r\n\r\n", Broke.LINE),
        (HEAD + b"X : y\r\n\r\n", Broke.LINE),
        (HEAD + b" folded\r\n\r\n", Broke.LINE),
        (HEAD + b"X: " + b"y" * 70_000, Broke.LINE),
        (HEAD + b"Content-Length: -1\r\n\r\n", Broke.LINE),
        (HEAD + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\n", Broke.LINE),
        (HEAD + b"Content-Length: 4, 4\r\n\r\n", Broke.LINE),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nbody", Broke.LINE),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", Broke.LINE),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nx\r\n", Broke.LINE),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody!\r\n", Broke.LINE),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 5000, Broke.LINE),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 70_000, Broke.LINE),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"y" * 70_000, Broke.LINE),
        (HEAD + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", Broke.LINE),
        (HEAD + b"Content-Length: 4\r\n\r\nbodyHTTP/1.1 200 OK\r\n", Broke.LINE),
        (HEAD + b"Content-Length: 101\r\n\r\n", Broke.CONTENT),
        (HEAD + b"\r\n" + b"y" * 101, Broke.CONTENT),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n65\r\n" + b"y" * 101, Broke.CONTENT),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffff\r\n" + b"y" * 101, Broke.CONTENT),
    ],
)
def test_what_is_no_answer_or_a_longer_one_than_allowed_is_refused_as_soon_as_that_is_known(
    data: bytes, broke: Broke
) -> None:
    with pytest.raises(HttpFault) as caught:
        HttpAnswer(100).feed(data)
    assert caught.value.broke is broke


EVENTS = (
    b": comment\r\nretry: 20\r\n\r\nid: 1\ndata:\n\nevent: message\rdata: a\rdata:b\r\rid: 2\ndata:  c\n\n"
    b"event: other\ndata: no\n\ndata\n\nid\r\ndata: d\r\n\r\nid: 4\ndata: \xc3\xa9\n\nid: 5\ndata: cut"
)


@pytest.mark.parametrize(("begun", "piece"), [(b"0\r\n", b"X: y\r\n"), (b"1;", b"xxxx")])
def test_lines_around_the_body_are_bounded_however_they_are_cut(begun: bytes, piece: bytes) -> None:
    answer = HttpAnswer(100)
    answer.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + begun)
    with pytest.raises(HttpFault, match="not of the body") as caught:
        for _ in range(70_000 // len(piece)):
            answer.feed(piece)
    assert caught.value.broke is Broke.LINE


def test_events_are_the_same_in_whatever_pieces_they_arrive() -> None:
    rng = random.Random(1)
    for _ in range(300):
        events = EventStream(1000)
        found = [data for piece in pieces(EVENTS, rng) for data in events.feed(piece)]
        assert found == [b"a\nb", b" c", b"d", "é".encode()]
        assert (events.last_id, events.retry_s) == ("4", 0.02)
    again = events.resumed()
    assert list(again.feed(b"data: whole\n\n")) == [b"whole"] and again.last_id == "4"
