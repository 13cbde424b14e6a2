"""The scripted user: steps, patience, and replies that can be asked for again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import CallToolResult
from pydantic import ValidationError

from mcp_rollout.mcp_servers.user_simulator import Answer, Cue, Scenario, Step, create_server
from mcp_rollout.mcp_servers.user_simulator.scripted import ScriptedUser
from mcp_rollout.mcp_servers.user_simulator.server import load_by_task

pytestmark = pytest.mark.anyio
ErrorOf = Callable[[CallToolResult], str]

TEA = Scenario(
    opening="I would like something hot.",
    first="drink",
    steps={
        "drink": Step(
            cues=(
                Cue(when=("tea", r"\?"), says="Yes, green tea.", to="milk", reward=0.5),
                Cue(when=("coffee",), says="No coffee for me.", to="drink"),
            ),
            otherwise=("Hm?", "Still thirsty."),
            patience=2,
            gives_up="I am going elsewhere.",
        ),
        "milk": Step(cues=(Cue(when=("milk",), says="No milk. Thanks!", to="end"),), otherwise=("And?",)),
    },
)


ASKED = TEA.model_copy(
    update={
        "answers": (
            Answer(when=("sugar", "how much"), content={"spoons": 2}),
            Answer(when=("newsletter",), action="cancel"),
        )
    }
)


def tea(task: str, seed: int) -> Scenario:
    if task != "tea":
        raise LookupError(f"no scenario for {task!r}")
    return TEA


async def ask(client: Client, tool: str, trajectory: str = "a", /, **arguments: Any) -> CallToolResult:
    return await client.call_tool(tool, arguments, meta={"mcp-rollout/trajectory": trajectory})  # type: ignore[arg-type]


async def reply(client: Client, seq: int, message: str, trajectory: str = "a") -> dict[str, Any]:
    result = await ask(client, "reply", trajectory, seq=seq, message=message)
    assert result.structured_content is not None, result
    return result.structured_content


async def test_the_user_reveals_one_thing_after_the_other_and_leaves_content():
    async with Client(create_server(tea)) as client:
        await ask(client, "reset", task="tea", seed=1)
        assert (await ask(client, "start")).structured_content == {"message": TEA.opening}
        assert await reply(client, 1, "Would TEA do?") == {"message": "Yes, green tea.", "done": False, "reward": 0.5}
        assert await reply(client, 2, "With milk?") == {"message": "No milk. Thanks!", "done": True}


def test_an_unhelpful_agent_is_left_when_patience_ends():
    user = ScriptedUser(TEA)
    said = [user.reply(message) for message in ("Hello", "Coffee?", "Hm")]
    assert [(reply.message, reply.done) for reply in said] == [
        ("Hm?", False),
        ("No coffee for me.", False),
        ("I am going elsewhere.", True),
    ]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"first": "soup"}, "steps that do not exist: soup"),
        ({"max_replies": 0}, "greater than or equal to 1"),
        ({"colour": "red"}, "Extra inputs are not permitted"),
        ({"steps": {"drink": {"cues": [{"when": ["("], "says": "", "to": "end"}], "otherwise": ["?"]}}}, "expression"),
    ],
)
def test_a_scenario_that_cannot_work_is_refused(change: dict[str, Any], complaint: str):
    with pytest.raises(ValidationError, match=complaint):
        Scenario.model_validate({**TEA.model_dump(), **change})


def test_scenarios_come_from_a_json_file_by_task_or_for_any(tmp_path: Path):
    path = tmp_path / "scenarios.json"
    path.write_text(json.dumps({"tea": TEA.model_dump()}))
    assert load_by_task(str(path), Scenario)("tea", 0) == TEA
    with pytest.raises(LookupError, match="soup"):
        load_by_task(str(path), Scenario)("soup", 0)
    path.write_text(json.dumps({"*": TEA.model_dump()}))
    assert load_by_task(str(path), Scenario)("soup", 0) == TEA


@pytest.mark.parametrize("source", ["nonsense", "no.such.module:f", "json:nothing", "json:__name__", "missing.json"])
def test_a_wrong_source_of_scenarios_is_named(source: str):
    with pytest.raises(ValueError, match=source.split(":")[0]):
        load_by_task(source, Scenario)


async def test_the_user_answers_what_servers_ask_by_the_question_and_declines_the_rest():
    async with Client(create_server(lambda _task, _seed: ASKED)) as client:
        await ask(client, "reset", task="tea", seed=0)
        questions = ["How much sugar?", "Our newsletter, perhaps?", "Your shoe size?"]
        answers = [
            (await ask(client, "elicit", seq=seq, message=question)).structured_content
            for seq, question in enumerate(questions, 1)
        ]
        assert answers == [{"action": "accept", "content": {"spoons": 2}}, {"action": "cancel"}, {"action": "decline"}]


async def test_a_question_that_is_asked_again_gets_the_same_answer_and_none_is_skipped(error_of: ErrorOf):
    async with Client(create_server(lambda _task, _seed: ASKED)) as client:
        await ask(client, "reset", task="tea", seed=0)
        first = (await ask(client, "elicit", seq=1, message="How much sugar?")).structured_content
        again = (await ask(client, "elicit", seq=1, message="Anything else")).structured_content
        assert first == again
        assert "question 3 is out of order" in error_of(await ask(client, "elicit", seq=3, message="Sugar?"))
        assert await reply(client, 1, "Tea?") == {"message": "Yes, green tea.", "done": False, "reward": 0.5}
