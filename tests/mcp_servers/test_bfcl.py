"""The leaderboard's server by itself: tools, tasks, results, user and score, over a bare MCP client."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from mcp import Client
from mcp_types import Tool

from mcp_rollout.mcp_servers import bfcl
from mcp_rollout.mcp_servers.bfcl import package
from mcp_rollout.mcp_servers.bfcl.tasks import find_task, load_tasks, tasks_of

pytestmark = pytest.mark.anyio

ROLES = {"reset", "release", "tasks", "start", "reply", "score", "expert"}
BACK = {"object": "dict", "number": "float"}
"""Types of the documents by JSON Schema's."""
Players = Callable[..., Any]


async def listed_tools() -> dict[str, Tool]:
    async with Client(bfcl.create_server()) as client:
        return {tool.name: tool for tool in (await client.list_tools()).tools}


@pytest.fixture
async def player(players_of: Players) -> AsyncIterator[Any]:
    async with players_of(bfcl.create_server()) as player:
        yield player("alone")


def document_type(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `json_schema` for the types that the documents have."""
    made = {key: value for key, value in schema.items() if key != "format"}
    made["type"] = BACK.get(made["type"], made["type"])
    if "properties" in made:
        made["properties"] = {name: document_type(member) for name, member in made["properties"].items()}
    if "items" in made:
        made["items"] = document_type(made["items"])
    return made


async def test_all_functions_are_tools_and_nothing_of_their_documents_is_lost() -> None:
    tools = await listed_tools()
    documents = {
        document["name"]: document for name in package.CLASSES for document in package.function_documents(name)
    }
    assert tools.keys() == documents.keys() | ROLES and len(documents) == 128
    for name, document in documents.items():
        Draft202012Validator.check_schema(tools[name].input_schema)
        described, _, response = str(tools[name].description).partition(
            " The response field has the following schema: "
        )
        assert described == document["description"]
        assert document_type(tools[name].input_schema) == document["parameters"]
        assert document_type(json.loads(response)) == document["response"]


@pytest.mark.parametrize("category", package.CATEGORIES)
def test_a_task_has_the_methods_of_its_classes_without_the_excluded_ones(category: package.Category) -> None:
    entries = {entry["id"]: entry for entry in package.task_entries(category)}
    excluded = 0
    for task in load_tasks(category):
        entry = entries[task.name]
        methods = {
            name
            for class_name in entry["involved_classes"]
            for name, _ in inspect.getmembers(package.api_class(class_name), inspect.isfunction)
            if not name.startswith("_")
        }
        assert set(task.functions) == methods - set(entry.get("excluded_function", []))
        excluded += "excluded_function" in entry
    assert (len(entries), excluded) == (200, 18)


def test_variants_of_a_scenario_and_equal_worlds_are_on_one_side() -> None:
    sides: dict[str, set[str]] = {}
    for split in ("train", "test"):
        for category in package.CATEGORIES:
            for task in tasks_of(category, split):
                for key in (f"{task.scenario}", json.dumps(task.initial_config, sort_keys=True), task.questions[0]):
                    sides.setdefault(key, set()).add(split)
    assert {len(found) for found in sides.values()} == {1}
    counts = {split: [len(tasks_of(category, split)) for category in package.CATEGORIES] for split in ("train", "test")}
    assert counts == {"train": [152] * 4, "test": [48] * 4}


async def call(player: Any, name: str, **arguments: Any) -> str:
    return (await player.call(name, **arguments)).content[0].text


async def test_a_class_answers_wrong_types_and_the_package_writes_what_it_raises(player: Any) -> None:
    assert find_task("multi_turn_base_50").classes == ("VehicleControlAPI",)
    await player.begin("multi_turn_base_50", 50)
    assert json.loads(await call(player, "fillFuelTank", fuelAmount=-1)).keys() == {"error"}
    assert await call(player, "fillFuelTank", fuelAmount="10") == (
        "Error during execution: '<' not supported between instances of 'str' and 'int'"
    )
    assert await call(player, "fillFuelTank") == (
        "Error during execution: VehicleControlAPI.fillFuelTank() missing 1 required positional argument: 'fuelAmount'"
    )
    assert "unexpected keyword argument 'litres'" in await call(player, "fillFuelTank", litres=3)
    assert (
        await call(player, "fillFuelTank", **{"from": 1}) == "Error during execution: invalid syntax (<string>, line 1)"
    )
    assert await call(player, "book_flight") == "Error during execution: name 'book_flight' is not defined"


async def test_nothing_that_a_policy_writes_is_evaluated(player: Any, tmp_path: Path) -> None:
    await player.begin("multi_turn_base_0", 0)
    code = f"__import__('pathlib').Path({str(tmp_path / 'mark')!r}).touch()"
    names = [f"folder={code}, x", f"folder=''), {code}, dict(a", f"**{{'folder': {code}}}, x", "x) or (1"]
    for name in names:
        assert (await call(player, "cd", **{name: 1})).startswith("Error during execution: ")
    await call(player, "cd", folder=code)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("power", {"base": 10, "exponent": 10**9}),
        ("power", {"base": 10**4000, "exponent": 3_000}),
        ("round_number", {"number": 5, "decimal_places": -(10**12)}),
        ("logarithm", {"value": 2, "base": 3, "precision": 10**9}),
        ("square_root", {"number": 2, "precision": 10**9}),
    ],
)
async def test_a_call_that_would_occupy_the_server_is_refused(
    player: Any, name: str, arguments: dict[str, Any]
) -> None:
    task = next(task for task in load_tasks("base") if "MathAPI" in task.classes)
    await player.begin(task.name, 0)
    assert await call(player, name, **arguments) == f"Error during execution: {name}: more than 10000 digits"


async def test_functions_are_refused_until_the_user_reveals_them_with_their_schemas(player: Any) -> None:
    tools = await listed_tools()
    await player.begin("multi_turn_miss_func_0", 0)
    listed = await player.harness(player.world, "expert", task="multi_turn_miss_func_0", seed=0)
    assert "sort" in {made["name"] for turn in listed["turns"] for made in turn.get("calls", [])}
    assert await call(player, "cd", folder="document") == '{"current_working_directory": "document"}'
    for _ in range(2):
        assert await call(player, "sort", file_name="x") == "Error during execution: name 'sort' is not defined"
        assert "tools" not in await player.say("next")
    assert await call(player, "sort", file_name="x") == "Error during execution: name 'sort' is not defined"
    reply = await player.say("next")
    assert reply["tools"] == ["sort"]
    schema, _, words = reply["message"].partition("\n")
    assert words == "I have updated some more functions you can choose from. What about now?"
    assert json.loads(schema) == {
        "type": "function",
        "function": {
            "name": "sort",
            "description": tools["sort"].description,
            "parameters": tools["sort"].input_schema,
        },
    }
    assert json.loads(await call(player, "sort", file_name="final_report.pdf")).keys() == {"sorted_content"}


async def play_until(player: Any, task: str, user_turns: int, *, last_answer: bool = True) -> None:
    """The expert's turns up to the end of so many user turns; without the message that ends the last of them."""
    await player.begin(task, 0)
    player.replies = done = 0
    for turn in (await player.harness(player.world, "expert", task=task, seed=0))["turns"]:
        if "content" in turn:
            done += 1
            if done < user_turns or last_answer:
                await player.say(turn["content"])
            if done == user_turns:
                return
        for made in turn.get("calls", []):
            await player.call(made["name"], **made["arguments"])


@pytest.mark.parametrize(
    ("user_turns", "last_answer", "score", "share"),
    [(4, True, 1.0, 1.0), (4, False, 1.0, 1.0), (3, True, 0.0, 0.75), (3, False, 0.0, 0.5), (1, True, 0.0, 0.25)],
)
async def test_a_trajectory_that_ends_before_its_last_user_turn_fails(
    player: Any, user_turns: int, last_answer: bool, score: float, share: float
) -> None:
    await play_until(player, "multi_turn_base_0", user_turns, last_answer=last_answer)
    for _ in range(2):  # a score changes nothing
        assert await player.score() == {"score": score, "parts": {"user_turns": share}}
    if not last_answer:  # and the turn can go on
        await player.say("Done.")
        assert (await player.score())["parts"] == {"user_turns": user_turns / 4}
