"""How a policy's calls are sent, as a configuration declares it: arguments as they are, one call after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.server.mcpserver import MCPServer

from mcp_rollout import Gateway, GatewayConfig
from mcp_rollout.gateway.schemas.arguments import prepare
from mcp_rollout.gateway.types import CallFault, ToolDefinition

pytestmark = pytest.mark.anyio
COUNT: dict[str, Any] = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
TOOL = ToolDefinition(server="s", name="t", exposed_name="t", description="", input_schema=COUNT)


@pytest.mark.parametrize("arguments", [{"count": "3"}, {"count": [3]}, {}, {"count": 3, "more": None}])
def test_arguments_as_sent_are_neither_coerced_nor_refused(arguments: dict[str, Any]) -> None:
    prepared = prepare(TOOL, arguments, as_sent=True)
    assert (prepared.arguments, prepared.changes, prepared.faults) == (arguments, {}, [])


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"count": nested(64)}, "nested more than 64 deep"),
        ({"count": nested(500)}, "nested more than 100 deep"),
        ({"count": float("nan")}, "not finite"),
        ({"count": "\ud800"}, "surrogate"),
        ([1], "expected an object"),
        ("[1]", "expected an object"),
    ],
)
def test_what_bounds_and_json_forbid_is_refused_as_ever(arguments: Any, fault: str) -> None:
    assert [fault in said for said in prepare(TOOL, arguments, as_sent=True).faults] == [True]


def test_an_argument_that_the_gateway_fixes_cannot_be_given() -> None:
    assert prepare(TOOL, {"count": 1}, fixed={"count": 2}, as_sent=True).faults == ["unknown 'count'"]


async def test_a_server_is_sent_what_its_schema_refuses(
    config: Callable[..., GatewayConfig], mini: Callable[..., dict[str, Any]]
) -> None:
    answers: dict[str, Any] = {}
    for arguments in ("checked", "as_sent"):
        made = config(world=mini("echo")).model_copy(
            update={"calls": GatewayConfig.model_validate({"servers": {}, "calls": {"arguments": arguments}}).calls}
        )
        async with Gateway(made) as gateway, gateway.lease(trajectory="t", task=None, seed=0) as session:
            answers[arguments] = await session.call("echo", {"text": [5], "more": 1})
    assert answers["checked"].fault is CallFault.INVALID_ARGUMENTS
    assert (answers["as_sent"].fault, answers["as_sent"].text) == (None, "[5]")


@pytest.mark.parametrize(("order", "most"), [("written", 1), ("concurrent", 8)])
async def test_calls_made_at_once_are_executed_in_written_order_where_that_is_declared(order: str, most: int) -> None:
    server = MCPServer("world", log_level="ERROR")
    begun, running, at_once = list[int](), set[int](), list[int]()

    @server.tool()
    async def step(number: int) -> int:
        """One step."""
        begun.append(number)
        running.add(number)
        at_once.append(len(running))
        for _ in range(50):  # long enough for every other call to arrive
            await anyio.lowlevel.checkpoint()
        running.discard(number)
        return number

    entry = {"world": {"factory": "unused:unused", "required": True}}
    made = GatewayConfig.model_validate({"servers": entry, "calls": {"order": order}})
    async with Gateway(made, connect=lambda *_: server) as gateway:
        async with gateway.lease(trajectory="t", task=None, seed=0) as session, anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(session.call, "step", {"number": number})
    assert max(at_once) == most
    assert begun == list(range(8)) or order == "concurrent"


async def test_another_setting_is_refused_with_its_key() -> None:
    with pytest.raises(ValueError, match=r"calls\.arguments"):
        GatewayConfig.model_validate({"servers": {}, "calls": {"arguments": "any"}})
