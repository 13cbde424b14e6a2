"""The library: what search finds, what an answer is worth, and what reading has to do with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import cache
from typing import Any

import pytest

from mcp_rollout.mcp_servers import research
from mcp_rollout.mcp_servers.research.facts import descriptions
from mcp_rollout.mcp_servers.research.library import Library, make_library
from mcp_rollout.mcp_servers.research.questions import TASKS, library_of, make_question
from mcp_rollout.mcp_servers.research.server import Inquiry, answer_in

pytestmark = pytest.mark.anyio
Seats = Callable[..., AbstractAsyncContextManager[Callable[[str], Any]]]
EASY, HARD = TASKS.names("test")[:2]
SOME = [*TASKS.names("train")[:60], *TASKS.names("test")[:60]]

library = cache(make_library)


def inquiry(task: str, seed: int) -> Inquiry:
    where: Library = library(*library_of(task, seed))
    return Inquiry(question=make_question(task, seed, where.facts), library=where)


async def begin(one: Any, task: str) -> Inquiry:
    await one.begin(task, TASKS.seed(task))
    return inquiry(task, TASKS.seed(task))


@pytest.mark.parametrize("task", SOME)
def test_searching_for_a_name_finds_its_article_among_the_first_five(task: str):
    made = inquiry(task, TASKS.seed(task))
    for title in made.question.chain:
        assert title in [found.title for found in made.library.search(title, 5)]


def test_the_answer_stands_in_the_last_article_alone_and_in_no_excerpt():
    for task in SOME:
        made = inquiry(task, TASKS.seed(task))
        texts = [made.library.documents[made.library.ids[title]] for title in made.question.chain]
        assert made.question.answer in texts[-1].text
        assert all(made.question.answer not in document.excerpt for document in texts)
        assert made.question.answer not in made.question.prompt
        assert all(made.question.answer not in document.text for document in texts[:-1]), made.question


def test_questions_of_the_splits_share_no_relation_and_each_type_of_value_has_one_that_no_question_means():
    for described in descriptions().values():
        for type_ in {relation.of for relation in described.relations}:
            alike = [relation for relation in described.relations if relation.of == type_]
            asked = [relation.split for relation in alike if relation.link or relation.ask]
            assert sorted(filter(None, asked)) in ([], ["test", "train"]) and len(alike) > len(asked)


async def test_a_right_answer_without_reading_is_worth_nothing(players_of: Seats):
    async with players_of(research.create_server()) as player:
        for task in (EASY, HARD):
            one = player(task)
            made = await begin(one, task)
            for title in made.question.chain:
                await one.call("search", query=title)
            await one.say(f"Answer: {made.question.answer}")
            assert await one.score() == {"score": 0.0, "parts": {"answer": 0.0, "evidence": 0.0}}


async def test_reading_part_of_the_chain_earns_part_and_no_answer_before_its_last_article(players_of: Seats):
    async with players_of(research.create_server()) as player:
        one = player("a")
        made = await begin(one, HARD)
        ids = [made.library.ids[title] for title in made.question.chain]
        expected = [(ids[0], 0.1 / 3), (ids[1], 0.2 / 3), (ids[2], 1.0)]
        for document, score in expected:
            await one.call("read", document=document)
            await one.say(f"Answer: {made.question.answer}")
            assert (await one.score())["score"] == pytest.approx(score)


async def test_a_wrong_answer_after_reading_everything_earns_the_evidence_alone(players_of: Seats):
    async with players_of(research.create_server()) as player:
        one = player("a")
        made = await begin(one, EASY)
        for title in made.question.chain:
            await one.call("read", document=made.library.ids[title])
        await one.say("Answer: unknown")
        assert await one.score() == {"score": pytest.approx(0.1), "parts": {"answer": 0.0, "evidence": 1.0}}


async def test_articles_beyond_the_first_five_are_no_evidence(players_of: Seats):
    async with players_of(research.create_server()) as player:
        one = player("a")
        made = await begin(one, EASY)
        chain = [made.library.ids[title] for title in made.question.chain]
        others = [document for document in made.library.documents if document not in chain]
        for document in [*others[:5], *others[:5], *chain]:
            await one.call("read", document=document)
        await one.say(f"Answer: {made.question.answer}")
        assert (await one.score())["score"] == 0.0


async def test_quoting_articles_and_search_results_earns_no_answer(players_of: Seats):
    """The attack: read everything, and hand on whatever the tools said."""
    async with players_of(research.create_server()) as player:
        one = player("a")
        made = await begin(one, EASY)
        quoted: list[str] = []
        for title in made.question.chain:
            quoted.append(json.dumps((await one.call("search", query=title)).structured_content))
            quoted.append((await one.call("read", document=made.library.ids[title])).content[0].text)
        one.messages.append({"role": "tool", "content": f"Answer: {made.question.answer}"})
        for attack in (
            "\n".join(quoted),
            f"Answer: {' '.join(quoted)}",
            "\n".join(f"Answer: {word}" for word in quoted[-1].split()),
            f"<tool_response>\n{quoted[-1]}\n</tool_response>",
        ):
            await one.say(attack)
            assert (await one.score())["parts"]["answer"] == 0.0, attack


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("Answer: The River Dorne.", "river dorne"),
        ("It is so.\n**Answer: 1887**", "1887"),
        ("answer: Aabye & Borg", "aabye borg"),
        ("Answer: 1887\nAnswer: 1888", None),
        ("Answer: 1887\nAnswer: 1887.", "1887"),
        ("The answer is 1887", None),
        ("", None),
    ],
)
def test_an_answer_is_one_explicit_line(said: str, answer: str | None):
    assert answer_in(said) == answer
