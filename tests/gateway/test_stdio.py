"""What arrives on a server's stdout, whatever it is."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse

from mcp_rollout import Gateway, GatewayConfig
from mcp_rollout.gateway.errors import ProtocolError
from mcp_rollout.gateway.transport.messages import parse_message, read_line
from mcp_rollout.mcp_wire.lines import LineSplitter, Oversize

pytestmark = pytest.mark.anyio
Entry = Callable[..., dict[str, Any]]
Config = Callable[..., GatewayConfig]


def lease(gate: Gateway) -> Any:
    return gate.lease(trajectory="t", task="task", seed=3)


async def test_garbage_and_bad_utf8_cost_no_answer(mini: Entry, config: Config) -> None:
    async with Gateway(config(world=mini("noise", "echo"))) as gate, lease(gate) as session:
        assert (await session.call("noise", {})).text == "caf�"
        assert (await session.call("echo", {"text": "ünïcode 🎲"})).text == "ünïcode 🎲"


async def test_a_lone_surrogate_is_replaced(mini: Entry, config: Config) -> None:
    async with Gateway(config(world=mini("surrogate"))) as gate, lease(gate) as session:
        assert (await session.call("surrogate", {})).text == "lone \ufffd surrogate"


async def test_an_answer_that_is_too_long_fails_its_call_alone(mini: Entry, config: Config) -> None:
    entry = mini("large", "echo", max_message_bytes=100_000)
    async with Gateway(config(world=entry)) as gate, lease(gate) as session:
        with pytest.raises(ProtocolError, match=r"world/large: the result has \d+ bytes, max_message_bytes is 100000"):
            await session.call("large", {})
        assert (await session.call("echo", {"text": "fine"})).text == "fine"


async def test_a_malformed_tool_hides_no_other_and_is_reported(mini: Entry, config: Config) -> None:
    entry = mini("echo", "malformed", "unknown_role", "put", "get")
    async with Gateway(config(world=entry)) as gate, lease(gate) as session:
        assert list(session.tools) == ["echo", "put", "get"]
        first, second = gate.malformed["world"]
        assert first.startswith("malformed: inputSchema") and "unknown role 'conductor'" in second
        assert (await session.call("echo", {"text": "fine"})).text == "fine"


async def test_a_server_inherits_no_secret_and_gets_what_its_entry_names(
    mini: Entry, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setenv("LC_TIME", "C")
    entry = mini("environment", env={"GREETING": "hello"})
    async with Gateway(config(world=entry)) as gate, lease(gate) as session:
        found = json.loads((await session.call("environment", {})).text)
    assert "WANDB_API_KEY" not in found
    assert (found["GREETING"], found["LC_TIME"], found["PATH"]) == ("hello", "C", os.environ["PATH"])


@given(st.lists(st.binary(max_size=40)), st.integers(1, 60))
def test_lines_are_split_alike_however_they_arrive(chunks: list[bytes], limit: int) -> None:
    splitter = LineSplitter(limit)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    expected = b"".join(chunks).split(b"\n")[:-1]
    assert [line.size if isinstance(line, Oversize) else len(line) for line in lines] == list(map(len, expected))
    for line, whole in zip(lines, expected, strict=True):
        if isinstance(line, Oversize):
            assert len(whole) > limit and whole.startswith(line.head) and whole.endswith(line.tail)
        else:
            assert line == whole and len(whole) <= limit


@pytest.mark.parametrize(
    ("line", "answered"),
    [
        (b'{"jsonrpc":"2.0","id":17,"result":{"id":3}}', 17),
        (b'{ "id": "a\\"b", "jsonrpc": "2.0", "result": {}}', 'a"b'),
        (b'{"result":{"content":[]},"jsonrpc":"2.0","id":5}', 5),
        (b'{"result":{"content":[]},"id":5,"jsonrpc":"2.0"}', 5),
        (b'{"result":{"content":[{"id":5}]}}', None),
        (b'{"jsonrpc":"2.0","id":17,"method":"sampling/createMessage"}', None),
        (b'{"jsonrpc":"2.0","id":007,"result":{}}', None),
        (b'{"jsonrpc":"2.0","id":"\\q","result":{}}', None),
        (b'{"jsonrpc":"2.0","id":"\xff","result":{}}', None),
    ],
)
def test_the_id_of_a_dropped_answer_is_found_only_where_an_id_stands(line: bytes, answered: object) -> None:
    assert Oversize(line[:1024], line[-512:], len(line)).answered_id() == answered


def test_an_answer_that_is_no_response_becomes_an_error_for_its_caller() -> None:
    def parse_line(line: bytes) -> JSONRPCMessage | None:
        found = read_line(line)
        return parse_message(found) if found is not None else None

    message = parse_line(b'{"jsonrpc":"2.0","id":4,"result":"not an object"}')
    assert isinstance(message, JSONRPCError) and message.id == 4
    assert isinstance(parse_line(b'{"jsonrpc":"2.0","id":4,"result":{}}'), JSONRPCResponse)
    assert parse_line(b"Listening on port 80") is None and parse_line(b"[" * 100_000) is None
    deep = parse_line(b'{"jsonrpc":"2.0","id":4,"result":{"x":' + b"[" * 300 + b"]" * 300 + b"}}")
    assert isinstance(deep, JSONRPCResponse) and deep.id == 4
    deeper = parse_line(b'{"jsonrpc":"2.0","id":4,"result":{"x":' + b"[" * 3000 + b"]" * 3000 + b"}}")
    assert isinstance(deeper, JSONRPCError) and deeper.id == 4
    long = parse_line(b'{"jsonrpc":"2.0","id":4,"result":{"x":' + b"1" * 5000 + b"}}")
    # Python reads integers of up to 4,300 digits; a longer one is text.
    assert isinstance(long, JSONRPCResponse) and long.result == {"x": "1" * 5000}
    assert parse_line(b'{"jsonrpc":"2.0","method":"notifications/message","params":' + b"1" * 5000 + b"}") is None


SDK_SERVER = """
import sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("world", instructions="Be kind.")
notes = []


@server.tool()
def note(text: str) -> list[str]:
    "Note."
    notes.append(text)
    return notes


server.run("stdio")
"""


async def test_a_server_made_with_the_sdk_works_in_processes_of_its_own(config: Config, tmp_path: Path) -> None:
    script = tmp_path / "world.py"
    script.write_text(SDK_SERVER)
    entry = {"command": sys.executable, "args": [str(script)], "scope": "process", "required": True}
    async with Gateway(config(world=entry)) as gate:
        assert gate.instructions == {"world": "Be kind."}
        for text in ("first", "second"):
            async with lease(gate) as session:
                assert (await session.call("note", {"text": text})).structured == {"result": [text]}
