"""Which calls are made, in which order, and with what arguments."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_rollout.gateway.types import ToolDefinition
from mcp_rollout.rollout.doctor.plan import Permissions, Script, plan_script
from mcp_rollout.rollout.doctor.probe_values import Found, Surroundings, Variant, arguments_for
from mcp_rollout.rollout.doctor.tool_words import Hints

AROUND = Surroundings(word="probe", directory="/tmp/work", page="http://127.0.0.1:1/")
ALL, READING = Permissions(write=True, outside=False), Permissions(write=False, outside=False)
STRING = {"type": "string"}


def tool(name: str, description: Any = "", read_only: Any = False, **properties: Any) -> ToolDefinition:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return ToolDefinition(
        server="s",
        name=name,
        exposed_name=name,
        description=description,
        input_schema=schema,
        read_only=read_only,
    )


def script(*tools: ToolDefinition, permissions: Permissions = ALL, hints: dict[str, Hints] | None = None) -> Script:
    return plan_script("s", tools, hints or {}, (), word="probe", permissions=permissions)


def test_what_looks_comes_before_and_after_and_what_acts_is_called_an_odd_number_of_times() -> None:
    names = [call.name for call in script(tool("toggle"), tool("get"), tool("create"), tool("delete")).calls]
    acts = ["toggle", "create", "create", "create", "toggle", "toggle"]
    assert names == ["get", "get", *(name for act in acts for name in ("get", act, "get")), "get"]
    assert [call.name for call in script(tool("delete"), tool("get")).closing] == ["delete", "get"]


def test_without_leave_to_write_a_tool_for_sql_gets_a_statement_that_only_looks() -> None:
    query = tool("query", "Runs an SQL query.", read_only=True, sql=STRING)
    sent = {str(call.arguments(Found(), AROUND)) for call in script(query, permissions=READING).calls}
    assert sent == {"{'sql': 'SELECT 1 AS one'}"}
    sent = {str(call.arguments(Found(), AROUND)) for call in script(query).calls}
    assert any("CREATE TABLE probe" in each for each in sent) and any("INSERT" in each for each in sent)
    assert script(tool("put", text=STRING), permissions=READING).withheld == {"put": "it may write"}


@pytest.mark.parametrize(
    ("name", "description", "open_world", "withheld"),
    [
        ("run_command", "Run a command.", None, True),
        ("install_package", "Installs a package.", None, True),
        ("send_email", "Sends an e-mail.", True, True),
        ("get_weather", "The weather of a city.", None, True),
        ("process_thought", "Notes a thought.", None, False),
        ("run_bash", "Runs bash commands in a sandboxed shell, in memory.", None, False),
        ("add_note", "Adds a note.", True, False),
    ],
)
def test_what_reaches_outside_is_told_by_names_descriptions_and_hints(
    name: str, description: str, open_world: bool | None, withheld: bool
) -> None:
    made = script(tool(name, description, text=STRING), hints={name: Hints(open_world=open_world)})
    assert (name in made.withheld) is withheld
    leave = Permissions(write=True, outside=True)
    assert not script(tool(name, description, text=STRING), permissions=leave).withheld


@pytest.mark.parametrize(
    ("argument", "schema", "expected"),
    [
        ("order_id", STRING, "o-17"),
        ("orderId", STRING, "o-17"),
        ("path", STRING, "/tmp/work/probe.txt"),
        ("directory", STRING, "/tmp/work"),
        ("url", STRING, "http://127.0.0.1:1/"),
        ("timezone", STRING, "UTC"),
        ("expression", STRING, "2 + 3"),
        ("notation", {"type": "string", "description": 'e.g., "3d8"'}, "2d6"),
        ("sizes", {"type": "string", "description": 'Comma-separated (e.g., "1,2")'}, "1,2"),
        ("seconds", {"type": "number", "default": 10}, 1),
        ("limit", {"type": "integer", "default": 10}, 10),
        ("text", STRING, "probe"),
    ],
)
def test_arguments_mean_something(argument: str, schema: dict[str, Any], expected: object) -> None:
    found = Found()
    found.learn('{"order": {"order_id": "o-17"}}', None)
    made = arguments_for(tool("work_on", **{argument: schema}), Variant(), found, AROUND)
    assert made == {argument: expected}
