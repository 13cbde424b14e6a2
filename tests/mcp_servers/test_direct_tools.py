"""The kit's way of running a tool against the SDK's own, value by value."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.tools.base import Tool
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

from mcp_rollout.mcp_servers.kit.direct.calls import _ordinary  # pyright: ignore[reportPrivateUsage]
from mcp_rollout.mcp_servers.kit.direct.tools import DirectMetadata, DirectTools


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Place(BaseModel):
    name: str = Field(alias="the-name")
    colour: Colour = Colour.RED


class Refusing(BaseModel):
    size: int

    @field_validator("size")
    @classmethod
    def small(cls, size: int) -> int:
        if size > 3:
            raise ValueError("too large")
        return size


class Pair(TypedDict):
    left: int
    right: float


@dataclass
class Box:
    width: int


PLACE = Place.model_validate({"the-name": "é"})
VALUES: list[Any] = [
    *(None, True, 0, 10**30, 1.0, 1e16, math.nan, "", "a", "é\u2028", "\ud800", '{"a": 1}', b"bytes"),
    *([], [1, "a", [None, {"b": 2.5}]], ("a", 1), {}, {"n": {"m": [1, None]}}, {1: 2}, {"s": "\ud800"}, {1, 2}),
    *(Colour.RED, Level.LOW, {"level": Level.LOW}, PLACE, [PLACE], Refusing.model_construct(size=9), Box(2)),
    *({"left": 1, "right": 2}, {"left": "x"}, Image(data=b"i", format="png"), [Image(data=b"i"), "a"], object()),
    *(TextContent(type="text", text="t"), ["a", TextContent(type="text", text="t")]),
    CallToolResult(content=[], structured_content={"result": 1}),
]

RETURNED: list[Any] = [
    *(Any, None, bool, int, float, str, bytes, Colour, Level, list[Any], tuple[str, int], dict[str, Any], set[int]),
    *(Place, list[Place], Refusing, Pair, Box, int | str, str | None, CallToolResult, list[Image | str]),
]


def tool(returned: Any) -> Tool:
    async def made() -> Any: ...

    made.__annotations__["return"] = returned
    return Tool.from_function(made)


def outcome(convert: Callable[[Any], Any], value: Any, modern: bool) -> Any:
    try:
        result = convert(value)
    except Exception as error:
        return type(error)
    return repr(_ordinary(result, modern=modern) or result)


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize(
    "returned",
    RETURNED,
    ids=str,
)
def test_results_are_converted_as_by_the_sdk(returned: Any, modern: bool) -> None:
    metadata = tool(returned).fn_metadata
    direct = DirectMetadata(metadata)
    for value in VALUES:
        assert outcome(direct.convert_result, value, modern) == outcome(metadata.convert_result, value, modern), value


@pytest.mark.parametrize(
    "arguments",
    [
        {"number": 1, "text": "a", "other": "x"},
        {"number": "1", "text": "[1]", "at": '{"the-name": "b"}'},
        {"number": 2, "text": "t", "many": '["a", "b"]', "more": 1},
        {"number": 2, "text": "t", "many": ["a"], "at": {"the-name": "b"}, "the-flag": True},
        {"number": "one", "text": "a"},
        {"text": 3},
        {},
    ],
    ids=str,
)
def test_arguments_are_validated_as_by_the_sdk(arguments: dict[str, Any]) -> None:
    async def takes(
        number: int,
        text: str,
        at: Place | None = None,
        many: list[str] | None = None,
        flag: bool = Field(default=False, alias="the-flag"),
    ) -> None: ...

    metadata = Tool.from_function(takes).fn_metadata
    direct, found = DirectMetadata(metadata), []
    for validate in (metadata.validate_arguments, direct.validate_arguments, direct.validate_arguments):
        try:
            found.append(validate(dict(arguments)))
        except Exception as error:
            found.append(str(error))
    assert found[0] == found[1] == found[2]


def handler(server: MCPServer) -> Any:
    entry = server._lowlevel_server.get_request_handler("tools/call")  # pyright: ignore[reportPrivateUsage]
    assert entry is not None
    return entry.handler


def test_a_tool_may_be_changed_or_removed_while_it_is_served() -> None:
    server = MCPServer("changing")

    @server.tool()
    async def number() -> int:
        return 1

    async def other() -> int:
        return 2

    async def said() -> Any:
        tool = tools.get("number", handler(server))
        return None if tool is None else await tool.run({}, Context(), convert_result=True)

    tools = DirectTools(server)
    assert anyio.run(said).structured == {"result": 1}
    registered = server._tool_manager.get_tool("number")  # pyright: ignore[reportPrivateUsage]
    assert registered is not None
    registered.fn = other
    assert anyio.run(said).structured == {"result": 2}
    server.remove_tool("number")
    assert anyio.run(said) is None
