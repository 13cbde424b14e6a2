"""Tools that a prompt does not show: refused as unknown until the user's reply names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from worlds import ROLE, opened, play, saying, task

from mcp_rollout.gateway.types import CallFault
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.rows import environment_tasks
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.tokens.chatml import ByteTokens
from mcp_rollout.rollout.trace.record import StopReason
from mcp_rollout.rollout.types import Call

pytestmark = pytest.mark.anyio
OPEN = hermes.write(calls=[Call(name="open_door", arguments={})])

LOOK = hermes.write(calls=[Call(name="look", arguments={})])


def house() -> MCPServer:
    """The user names `open_door` in the reply to the second message."""
    server = MCPServer("house", log_level="ERROR")

    @server.tool()
    async def look() -> str:
        """Look."""
        return "a door"

    @server.tool()
    async def open_door() -> str:
        """Open the door."""
        return "it is open"

    @server.tool(meta={ROLE: "start"})
    async def start() -> dict[str, Any]:
        return {"message": "Go in."}

    @server.tool(meta={ROLE: "reply"})
    async def reply(seq: int, message: str) -> dict[str, Any]:
        named = {"tools": ["open_door", "no_such_tool"]} if seq == 2 else {}
        return {"message": f"{seq}", "done": seq == 3, **named}

    @server.tool(meta={ROLE: "tasks"})
    async def tasks(split: str, limit: int) -> dict[str, Any]:
        shown = {"tools": ["look"], "later_tools": ["open_door"]}
        return {"tasks": [{"task": split, "seed": 0, "prompt": "Go in.", **shown}][:limit]}

    return server


async def test_the_user_cannot_name_a_tool_that_only_the_harness_calls(tmp_path: Path) -> None:
    row = task(tools=["look"], setup=[{"name": "open_door"}])
    completions = ["one", "two", OPEN, "three"]
    trace = await play({"house": house()}, saying(*completions), tmp_path, row=row, user={"server": "house"})
    assert trace.setup[0].text == "it is open"
    assert [event.fault for turn in trace.turns for event in turn.tools] == [CallFault.UNKNOWN_TOOL]


async def test_a_later_tool_is_refused_like_an_unknown_one_until_the_user_names_it(tmp_path: Path) -> None:
    completions = [OPEN, "one", OPEN, "two", OPEN, "three"]
    row = task(tools=["look"], later_tools=["open_door"])
    trace = await play({"house": house()}, saying(*completions), tmp_path, row=row, user={"server": "house"})
    events = [event for turn in trace.turns for event in turn.tools]
    assert [event.fault for event in events] == [CallFault.UNKNOWN_TOOL, CallFault.UNKNOWN_TOOL, None]
    assert events[0].text == "Unknown tool 'open_door'. Available tools: look" and events[2].text == "it is open"
    prompt = ByteTokens().decode(trace.prompt_ids)
    assert '"name": "look"' in prompt and "open_door" not in prompt
    assert trace.stop_reason is StopReason.USER_DONE


async def test_rows_have_the_tools_of_their_task_by_exposed_names() -> None:
    server = house()
    entry = {"factory": "unused:unused", "required": True, "tools": {"prefix": True}}
    made = Environment.model_validate({"name": "test", "servers": {"house": entry}, "tasks": {"server": "house"}})
    async with opened(made, {"house": server}) as gateway:
        rows = await environment_tasks(made, gateway, "all", None)
    assert [row.task for row in rows] == ["train", "test"]
    assert {(row.tools, row.later_tools) for row in rows} == {(("house__look",), ("house__open_door",))}
    assert rows[0].callable_tools == ("house__look", "house__open_door")
    assert rows[0].shows("house__look") and not rows[0].shows("house__open_door")


async def test_a_user_message_takes_at_most_so_many_turns(tmp_path: Path) -> None:
    limits = Limits(response_tokens=100_000, assistant_turns=20, turns_per_user_message=3)
    kept, broken = [LOOK, LOOK, "one", LOOK, LOOK, "two", "three"], [LOOK, LOOK, "one", LOOK, LOOK, LOOK, "two"]
    traces = [
        await play({"house": house()}, saying(*said), tmp_path, limits=limits, user={"server": "house"})
        for said in (kept, broken)
    ]
    assert [(len(trace.turns), trace.stop_reason) for trace in traces] == [
        (7, StopReason.USER_DONE),
        (6, StopReason.TURN_LIMIT),
    ]
