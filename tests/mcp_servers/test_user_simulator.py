"""The scripted user: steps, patience, and replies that can be asked for again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
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


async def test_a_repeated_number_gets_the_same_answer_and_moves_nothing():
    async with Client(create_server(tea)) as client:
        await ask(client, "reset", task="tea", seed=1)
        first = await reply(client, 1, "Would tea do?")
        assert await reply(client, 1, "Would tea do?") == first
        assert await reply(client, 1, "milk") == first
        assert (await reply(client, 2, "milk"))["done"] is True
        assert await reply(client, 1, "anything") == first


async def test_duplicates_in_flight_together_advance_the_user_once():
    answers: list[dict[str, Any]] = []
    async with Client(create_server(tea)) as client:
        await ask(client, "reset", task="tea", seed=1)

        async def duplicate() -> None:
            answers.append(await reply(client, 1, "Hello"))

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(duplicate)
        assert answers == [{"message": "Hm?", "done": False}] * 8
        assert (await reply(client, 2, "Hello"))["message"] == "Still thirsty."


async def test_a_jump_and_a_reply_after_the_end_are_refused(error_of: ErrorOf):
    async with Client(create_server(tea)) as client:
        await ask(client, "reset", task="tea", seed=1)
        for seq in (0, -1, 2, 7):
            assert "the next one is 1" in error_of(await ask(client, "reply", seq=seq, message="Tea?"))
        await reply(client, 1, "tea?")
        await reply(client, 2, "milk")
        assert "the conversation was over after reply 2" in error_of(await ask(client, "reply", seq=3, message="Wait!"))


async def test_conversations_are_apart_and_end_with_release(error_of: ErrorOf):
    async with Client(create_server(tea)) as client:
        for name in ("a", "b"):
            await ask(client, "reset", name, task="tea", seed=1)
        await reply(client, 1, "tea?", "a")
        assert (await reply(client, 1, "tea", "b"))["message"] == "Hm?"
        await ask(client, "release", "a")
        assert "was released" in error_of(await ask(client, "reply", "a", seq=2, message="milk"))
        assert (await reply(client, 2, "tea?", "b"))["message"] == "Yes, green tea."


async def test_nobody_is_there_before_reset_and_for_unknown_tasks(error_of: ErrorOf):
    async with Client(create_server(tea)) as client:
        assert "call reset first" in error_of(await ask(client, "start"))
        assert "no scenario for 'soup'" in error_of(await ask(client, "reset", task="soup", seed=1))


def test_an_unhelpful_agent_is_left_when_patience_ends():
    user = ScriptedUser(TEA)
    said = [user.reply(message) for message in ("Hello", "Coffee?", "Hm")]
    assert [(reply.message, reply.done) for reply in said] == [
        ("Hm?", False),
        ("No coffee for me.", False),
        ("I am going elsewhere.", True),
    ]


def test_a_scenario_that_goes_in_circles_ends_at_max_replies():
    circle = {
        "a": Step(cues=(Cue(when=("x",), says="b", to="b"),), otherwise=("?",)),
        "b": Step(cues=(Cue(when=("x",), says="a", to="a"),), otherwise=("?",)),
    }
    user = ScriptedUser(Scenario(opening="Round!", first="a", steps=circle, max_replies=6))
    assert [user.reply("x").done for _ in range(6)] == [False] * 5 + [True]


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
