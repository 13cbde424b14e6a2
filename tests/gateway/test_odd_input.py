"""Unexpected input from servers: each costs at most the server that sent it."""

from __future__ import annotations

from typing import Any, cast

import anyio
import mcp_types as mcp
import pytest
from anyio.abc import TaskGroup

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.connection.in_flight import InFlightCalls
from mcp_rollout.gateway.connection.redaction import Secrets
from mcp_rollout.gateway.leases.watch import ToolWatch
from mcp_rollout.gateway.transport.messages import read_json
from mcp_rollout.gateway.transport.tool_definitions import read_tools
from mcp_rollout.gateway.types import ToolDefinition

pytestmark = pytest.mark.anyio


def definition(description: str) -> ToolDefinition:
    return ToolDefinition(server="s", name="t", exposed_name="t", description=description, input_schema={})


@pytest.mark.parametrize("mark", [["reset"], {"role": "reset"}, 3, "nonsense"])
def test_a_role_mark_that_is_none_costs_its_tool_alone(mark: Any) -> None:
    odd = mcp.Tool(name="odd", input_schema={"type": "object"}, _meta={"mcp-rollout/role": mark})
    good = mcp.Tool(name="good", input_schema={"type": "object"})
    tools, faults = read_tools("s", [odd, good], {})
    assert [tool.name for tool in tools] == ["good"]
    assert len(faults) == 1 and faults[0].startswith("odd: ")


@pytest.mark.parametrize("meta", ["x", [1], 5, None])
def test_a_notification_whose_meta_is_no_object_belongs_to_the_call_it_arrived_in_or_to_none(meta: Any) -> None:
    assert InFlightCalls().find(meta, None) == []


async def test_a_change_that_is_announced_while_other_servers_start_is_not_forgotten() -> None:
    async with anyio.create_task_group() as tasks:
        watch = ToolWatch(cast("TaskGroup", tasks))
        await watch.compare("s", [definition("now")])
        assert not watch.changed
        await watch.publish("s", [definition("then")])
        assert "s" in watch.changed


async def test_a_listing_before_the_start_is_over_is_no_change_in_itself() -> None:
    async with anyio.create_task_group() as tasks:
        watch = ToolWatch(cast("TaskGroup", tasks))
        await watch.compare("s", [definition("same")])
        await watch.publish("s", [definition("same")])
        assert not watch.changed


@pytest.mark.parametrize(("count", "kind"), [(40, int), (100, str)])
def test_integers_of_thousands_of_digits_are_text_where_a_message_has_too_many(count: int, kind: type) -> None:
    digits = "7" * 4000
    found = read_json(f'{{"short": {"7" * 300}, "long": [{", ".join([digits] * count)}]}}'.encode())
    assert found["short"] == int("7" * 300)
    assert {type(each) for each in found["long"]} == {kind} and str(found["long"][-1]) == digits


def test_a_fixed_argument_with_the_name_of_a_secret_is_one() -> None:
    change = {"*": {"fixed": {"api_key": "fx-abcdef123", "user": "plainly-me"}}}
    config = ServerConfig.model_validate({"command": "x", "tools": {"change": change}})
    assert Secrets(config).redact("bad key fx-abcdef123 of plainly-me") == "bad key [secret] of plainly-me"
