"""Calls that prepare a task's world and that examine it: made by the harness, recorded, never shown to the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from notes import notes_server
from worlds import environment, play, saying, task

from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.reward import check_rewarded
from mcp_rollout.rollout.trace.record import StopReason
from mcp_rollout.rollout.trace.store import read_traces
from mcp_rollout.rollout.types import Call

pytestmark = pytest.mark.anyio
SOLVED = {"weights": {"solved": 1.0}}
DONE = "I have noted it."


def write(name: str, text: str) -> dict[str, Any]:
    return {"name": "write", "arguments": {"name": name, "text": text}}


def read(name: str, **expected: Any) -> dict[str, Any]:
    return {"name": "read", "arguments": {"name": name}, **expected}


def calling(*calls: dict[str, Any]) -> str:
    return hermes.write(calls=[Call(**call) for call in calls])


async def played(directory: Path, *texts: str, reward: Any = SOLVED, **row: Any) -> Any:
    return await play({"notes": notes_server()}, saying(*texts), directory, row=task(**row), reward=reward)


async def test_setup_prepares_the_world_and_the_policy_sees_none_of_it(tmp_path: Path) -> None:
    trace = await played(tmp_path, calling(read("a")), "one", setup=[write("a", "one")], answer="one")
    assert trace.turns[0].tools[0].text == "one" and trace.reward.score == 1.0
    assert [(event.server, event.name, event.text) for event in trace.setup] == [("notes", "write", "written")]
    assert trace.setup[0].arguments == {"name": "a", "text": "one"} and trace.setup[0].began_at > 0
    assert "written" not in str(trace.messages) and trace.tool_calls == 1
    (stored,) = read_traces(tmp_path)
    assert stored.setup == trace.setup and stored.task == trace.task


async def test_checks_examine_the_world_that_the_policy_left(tmp_path: Path) -> None:
    checks = [read("a", returns="two"), read("b", error=True), read("c")]
    trace = await played(tmp_path, calling(write("a", "two")), DONE, setup=[write("c", "x")], check=checks)
    assert [each.holds for each in trace.checks] == [True, True, True] and trace.reward.score == 1.0
    assert [each.call.text for each in trace.checks][1:] == ["Error executing tool read: there is no note b", "x"]
    assert "no note b" not in str(trace.messages)


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        ({"returns": "TWO. "}, True),
        ({"returns": "TWO", "match": "exact"}, False),
        ({"returns": "^t.o$", "match": "regex"}, True),
        ({"returns": 2}, False),
        ({"returns": "two", "error": True}, False),
        ({"error": True}, False),
    ],
)
async def test_a_check_holds_by_what_it_returns(tmp_path: Path, check: dict[str, Any], holds: bool) -> None:
    trace = await played(tmp_path, DONE, setup=[write("a", "two")], check=[read("a", **check)])
    assert trace.checks[0].holds is holds and trace.reward.score == float(holds)


async def test_an_answer_and_checks_are_demands_of_equal_weight(tmp_path: Path) -> None:
    row: Any = {"answer": "yes", "check": [read("a", returns="x"), read("b", error=True)]}
    trace = await played(tmp_path / "a", "yes", **row)
    assert trace.reward.parts == {"solved": pytest.approx(2 / 3)} and trace.reward.score == pytest.approx(2 / 3)
    weights = {"weights": {"exact_match": 0.25, "checks": 0.5}}
    trace = await played(tmp_path / "b", "no", reward=weights, **row)
    assert trace.reward.parts == {"exact_match": 0.0, "checks": 0.5} and trace.reward.score == 0.25


async def test_only_the_harness_may_call_the_tools_of_its_calls(tmp_path: Path) -> None:
    row: Any = {"tools": ["read"], "setup": [write("a", "one")], "check": [read("a", returns="one")]}
    trace = await played(tmp_path, calling(write("a", "two")), DONE, **row)
    assert "Unknown tool 'write'. Available tools: read" in trace.turns[0].tools[0].text
    prompt = bytes(token for token in trace.prompt_ids if token < 256).decode()
    assert '"name": "read"' in prompt and '"name": "write"' not in prompt and trace.reward.score == 1.0


@pytest.mark.parametrize(
    ("setup", "problem"),
    [
        (read("a"), "setup.0: read answers with an error: Error executing tool read: there is no note a"),
        ({"name": "wipe"}, "unknown tool 'wipe'"),
        ({"name": "read", "arguments": {"nam": "a"}}, "Invalid arguments for read"),
    ],
)
async def test_a_world_that_cannot_be_prepared_withdraws_the_trajectory(
    tmp_path: Path, setup: dict[str, Any], problem: str
) -> None:
    trace = await played(tmp_path, DONE, tools=["read"], setup=[setup], check=[read("a")])
    assert trace.stop_reason is StopReason.FAILED and trace.is_withdrawn and not trace.turns
    assert trace.failure is not None and problem in trace.failure.message


def test_an_environment_rewards_by_solved_alone() -> None:
    check_rewarded(environment({"notes": notes_server()}, reward=SOLVED))


async def test_a_world_that_is_rolled_out_again_is_prepared_again(tmp_path: Path) -> None:
    trace = await played(tmp_path, DONE, setup=[write("a", "one")])
    trace.fail("world_lost", "gone")
    trace.begin_again("next")
    assert trace.setup == [] and trace.checks == [] and trace.task.setup
