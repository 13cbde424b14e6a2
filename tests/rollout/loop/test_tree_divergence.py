"""What is read about a branch whose world did not repeat its parent's: the difference, where it is, and the remedy."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult, TextContent
from trees import Engine, grow

from mcp_rollout.gateway.types import Content, ContentKind, ToolResult
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.difference import compared, described
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import read_traces
from mcp_rollout.rollout.types import Call

pytestmark = pytest.mark.anyio
DECLARE = 'in the result\'s _meta["mcp-rollout/volatile"], or use chains (strategy: chain)'


def stating(answer: Callable[[int], CallToolResult]) -> MCPServer:
    """`stat` answers with the number of all calls so far."""
    server, count = MCPServer("files", log_level="ERROR"), itertools.count(1790)

    @server.tool(structured_output=False)
    async def stat(path: str) -> CallToolResult:
        """A file's times."""
        return answer(next(count))

    return server


async def diverged_of(
    tmp_path: Path, answer: Callable[[int], CallToolResult], calls: Sequence[str] = ("a.txt",)
) -> tuple[Trace, Trace]:
    """The diverged attempt of a branch, and the chain after it."""
    said = hermes.write(calls=[Call(name="stat", arguments={"path": path}) for path in calls])
    engine = Engine(lambda _, turn: said if turn == 0 else "Done.")
    traces = await grow({"files": stating(answer)}, engine, tmp_path, leaves=2, tree={"roots": 1})
    (attempt,) = [trace for trace in read_traces(tmp_path) if trace.failure is not None]
    return attempt, traces[1]


def text(said: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=said)])


async def test_the_call_that_differed_keeps_what_it_answered(tmp_path: Path) -> None:
    attempt, chain = await diverged_of(tmp_path, lambda now: text(f"changed at {now}"))
    (event,) = attempt.turns[0].tools
    assert (event.text, event.is_error, event.server) == ("changed at 1791", False, "files")
    assert chain.turns[0].tools[0].text == "changed at 1792" and chain.origin.attempt == 1


def result(text: str, **fields: Any) -> ToolResult:
    return ToolResult(content=(Content(kind=ContentKind.TEXT, text=text),), **fields)


def stated(text: str, state: str) -> ToolResult:
    return result(text, meta={"mcp-rollout/state": state})


@pytest.mark.parametrize(
    ("before", "now", "line"),
    [
        (
            result("5"),
            result("no such file", is_error=True),
            'is_error: false became true, text: "5" became "no such file"; use chains (strategy: chain)',
        ),
        (
            result('{"a": [1, 2]}'),
            result('{"a": [1, 2, 3]}'),
            f'text.a[2]: absent became 3; declare "a" {DECLARE}',
        ),
        (
            result(json.dumps(dict.fromkeys("abcdefg", 1))),
            result("{}"),
            f'text.a: 1 became absent; declare "a", "b", "c", "d", "e" and 2 more {DECLARE}',
        ),
        # A dotted path cannot name it.
        (result('{"a.b": 1}'), result('{"a.b": 2}'), "text.a.b: 1 became 2; use chains (strategy: chain)"),
        (result("[1]"), result("[2]"), "text[0]: 1 became 2; use chains (strategy: chain)"),
        (stated("1", "a"), stated("1", "b"), 'state: "a" became "b"; use chains (strategy: chain)'),
        (
            result("a"),
            ToolResult(),
            'content[0]: {"kind":"text","text":"a"} became absent; use chains (strategy: chain)',
        ),
        # 1 and true are equal in Python, and not in JSON.
        (result('{"a": 1}'), result('{"a": true}'), f'text.a: 1 became true; declare "a" {DECLARE}'),
    ],
)
def test_each_kind_of_difference_has_its_remedy(before: ToolResult, now: ToolResult, line: str) -> None:
    assert described(compared(before, now)) == line
