"""Policies that do not do the task: what the best ones known earn on the test splits.

Each is fitted on training prompts and their rewards, reads the prompt and the tool list, and plays through the server.
By default they play a seeded slice of them; under `full` all, of which docs/environments.md has the highest scores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import cache
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import pytest
from blind_formulas import BlindFormulas, Solved, numbers_in
from blind_reading import GUESSES, Answered, BlindReader, Hits, guess_by_kinds

from mcp_rollout.mcp_servers import calculator, filesystem_ops, gsm8k_tools, research, sandbox
from mcp_rollout.mcp_servers.calculator import server as calculations
from mcp_rollout.mcp_servers.filesystem_ops.tasks import TASKS as FILES
from mcp_rollout.mcp_servers.gsm8k_tools import server as word_problems
from mcp_rollout.mcp_servers.kit import Splits
from mcp_rollout.mcp_servers.research.facts import descriptions
from mcp_rollout.mcp_servers.research.library import Library, make_library
from mcp_rollout.mcp_servers.research.questions import TASKS as QUESTIONS
from mcp_rollout.mcp_servers.research.questions import Question, library_of, make_question
from mcp_rollout.mcp_servers.sandbox.server import TASKS as PROGRAMS

pytestmark = pytest.mark.anyio
Seats = Callable[..., AbstractAsyncContextManager[Callable[[str], Any]]]
Policy = Callable[[Any, str], Awaitable[None]]
"""Plays one trajectory: the player, which names its task, and the prompt."""
MOST = 0.2


Earned = Callable[[AbstractAsyncContextManager[Callable[[str], Any]], Splits, Policy], Awaitable[float]]


@pytest.fixture(params=[pytest.param(16, id="slice"), pytest.param(None, id="all", marks=pytest.mark.full)])
def earned(request: pytest.FixtureRequest) -> Earned:
    """A policy's mean score on the test split, or on so many of its tasks."""

    async def play_each(
        players: AbstractAsyncContextManager[Callable[[str], Any]], tasks: Splits, play: Policy
    ) -> float:
        scores: list[float] = []
        names = tasks.names("test")
        async with players as player:
            for task in names if request.param is None else Random(0).sample(names, request.param):
                one = player(task)
                await one.begin(task, tasks.seed(task))
                await play(one, one.messages[0]["content"])
                scores.append((await one.score())["score"])
                await one.harness(one.world, "release")
        return fmean(scores)

    return play_each


SELECTORS = ["constants", "all", "count", "words", "asked", "roles"]
PROBLEMS = {"gsm8k_tools": word_problems, "calculator": calculations}


@cache
def formulas(name: str) -> BlindFormulas:
    tasks, make = PROBLEMS[name].TASKS, PROBLEMS[name].problem
    train = [make(task, tasks.seed(task)) for task in tasks.names("train")]
    return BlindFormulas([Solved(one.prompt, one.answer) for one in train])


@pytest.mark.parametrize("selector", SELECTORS)
async def test_formulas_that_solve_training_problems_solve_no_test_problem(
    earned: Earned, players_of: Seats, selector: str
) -> None:
    async def try_each(one: Any, prompt: str) -> None:
        for guess in formulas("gsm8k_tools").guesses(prompt, selector, 4):
            if (await one.say(f"Answer: {guess}"))["done"]:
                return

    assert await earned(players_of(gsm8k_tools.create_server()), word_problems.TASKS, try_each) <= MOST


@pytest.mark.parametrize("selector", SELECTORS)
async def test_formulas_do_no_calculator_task(earned: Earned, players_of: Seats, selector: str) -> None:
    async def guess(one: Any, prompt: str) -> None:
        await one.say(f"Answer: {next(iter(formulas('calculator').guesses(prompt, selector, 1)), 0)}")

    assert await earned(players_of(calculator.create_server()), calculations.TASKS, guess) <= MOST


async def test_calculating_with_every_pair_of_numbers_earns_little(earned: Earned, players_of: Seats) -> None:
    """The share of the intermediate results, had without reading."""

    async def pairs(one: Any, prompt: str) -> None:
        numbers = numbers_in(prompt)
        for sign in "*-":
            for place, number in enumerate(numbers):
                for other in numbers[:place]:
                    await one.call("calculate", expression=f"{max(number, other)} {sign} {min(number, other)}")

    assert await earned(players_of(gsm8k_tools.create_server()), word_problems.TASKS, pairs) <= MOST / 4


@pytest.mark.parametrize("tasks", [word_problems, calculations], ids=["gsm8k_tools", "calculator"])
def test_the_splits_share_no_sentence_and_no_count_of_numbers(tasks: Any) -> None:
    sentences: dict[str, set[str]] = {}
    counts: dict[str, set[int]] = {}
    for split in tasks.TASKS.sizes:
        prompts = [tasks.problem(task, tasks.TASKS.seed(task)).prompt for task in tasks.TASKS.names(split)]
        told = [re.sub(r"\d+|\b[A-Z]\w+", "#", prompt[: prompt.rindex("?")]) for prompt in prompts]
        sentences[split] = {sentence for text in told for sentence in text.split(". ")}
        counts[split] = {len(numbers_in(prompt)) for prompt in prompts}
    assert not sentences["train"] & sentences["test"] and not counts["train"] & counts["test"]


library: Callable[..., Library] = cache(make_library)


def question_of(task: str) -> Question:
    seed = QUESTIONS.seed(task)
    return make_question(task, seed, library(*library_of(task, seed)).facts)


@cache
def reader() -> BlindReader:
    train: list[Answered] = []
    for task in QUESTIONS.names("train"):
        question, shelf = question_of(task), library(*library_of(task, QUESTIONS.seed(task)))
        train.append(Answered(question.prompt, question.answer, shelf.documents[shelf.ids[question.chain[-1]]].text))
    return BlindReader(train)


async def found(one: Any, query: str) -> Hits:
    result = await one.call("search", query=query[:400], limit=10)
    return {hit["title"]: (hit["document"], hit["excerpt"]) for hit in result.structured_content["hits"]}


async def opened(one: Any, document: str) -> str:
    return (await one.call("read", document=document)).content[0].text


@pytest.mark.parametrize("opens", [2, pytest.param(5, marks=pytest.mark.full)])
async def test_opening_what_is_in_reach_and_guessing_by_type_earns_little(
    earned: Earned, players_of: Seats, opens: int
) -> None:
    """Beyond the first five, articles do not count. Each way of guessing has the same articles."""
    scores: dict[str, list[float]] = {guess: [] for guess in GUESSES}

    async def browse(one: Any, prompt: str) -> None:
        texts = await reader().read(prompt, lambda query: found(one, query), lambda it: opened(one, it), opens=opens)
        for guess in GUESSES:
            await one.say(f"Answer: {reader().guess(prompt, texts, guess)}")
            scores[guess].append((await one.score())["score"])

    await earned(players_of(research.create_server()), QUESTIONS, browse)
    assert max(map(fmean, scores.values())) <= MOST


@pytest.mark.parametrize("width", [1, 2, 3])
async def test_an_agent_that_knows_the_kinds_of_all_articles_to_pass_earns_little(
    earned: Earned, players_of: Seats, width: int
) -> None:
    noun = {"place": "is a town", "company": "is a company", "person": "encyclopedias"}

    async def browse(one: Any, prompt: str) -> None:
        question = question_of(one.trajectory)
        facts = library(*library_of(one.trajectory, one.seed)).facts
        last = facts[question.chain[-1]]
        relation = next(it for it in descriptions()[last.kind].relations if last.facts[it.name] == question.answer)
        alike = [it.name for it in descriptions()[last.kind].relations if it.of == relation.of]
        values = {entity.facts[name] for entity in facts.values() if entity.kind == last.kind for name in alike}
        answer = await guess_by_kinds(
            prompt,
            [noun[facts[name].kind] for name in question.chain[1:]],
            values,
            lambda query: found(one, query),
            lambda it: opened(one, it),
            width=width,
        )
        await one.say(f"Answer: {answer}")

    assert await earned(players_of(research.create_server()), QUESTIONS, browse) <= MOST


@pytest.mark.parametrize(
    ("source", "count", "target"),
    [
        *((source, count, "named") for source in ("letters", "notes", "reports") for count in (1, 3, 100)),
        *((source, 100, "wrong") for source in ("letters", "notes", "reports", "")),
    ],
)
async def test_moving_files_without_reading_them_earns_little(
    earned: Earned, players_of: Seats, tmp_path: Path, source: str, count: int, target: str
) -> None:
    """The first files of a directory, or all files, to the directory that the prompt names, or to wrong names."""

    async def move(_: Any, prompt: str) -> None:
        wanted = [name for name in re.findall(r"([a-z][\w/]*)/", prompt) if not (tmp_path / name).exists()]
        place = tmp_path / (wanted[-1] if wanted and target == "named" else f"{source}/other")
        paths = sorted(path for path in (tmp_path / source).rglob("*.*") if path.is_file())
        place.mkdir(parents=True, exist_ok=True)
        for path in paths[:count]:
            path.rename(place / path.name)

    assert await earned(players_of(filesystem_ops.create_server(tmp_path)), FILES, move) <= MOST


async def test_writing_every_file_that_the_prompt_names_earns_little(
    earned: Earned, players_of: Seats, tmp_path: Path
) -> None:
    async def write(_: Any, prompt: str) -> None:
        for name in re.findall(r"[\w/-]+\.\w+", prompt):
            place = tmp_path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("\n".join(re.findall(r"'(.+?)'", prompt)))

    assert await earned(players_of(filesystem_ops.create_server(tmp_path)), FILES, write) <= MOST


ONE_STEP = """
EXAMPLES = {examples}
KS = {numbers}

def numbers_of(it):
    return [x for part in it for x in (part if isinstance(part, list) else [part])] if isinstance(it, list) else []

FORMS = [
    lambda it, k: it, lambda it, k: sorted(it), lambda it, k: sorted(it)[::-1], lambda it, k: it[::-1],
    lambda it, k: len(it), lambda it, k: sum(numbers_of(it)), lambda it, k: max(numbers_of(it)),
    lambda it, k: sum(sorted(numbers_of(it))[-k:]), lambda it, k: [sum(row) for row in it],
    lambda it, k: [max(column) for column in zip(*it)], lambda it, k: [row[i] for i, row in enumerate(it)],
    lambda it, k: it[k:] + it[:k], lambda it, k: it[::k], lambda it, k: [b - a for a, b in it],
    lambda it, k: [b - a for a, b in zip(it, it[1:])], lambda it, k: "-".join(it.split()),
    lambda it, k: sorted(it.split(), key=lambda w: (len(w), w)), lambda it, k: "".join(w[-1] for w in it.split()),
    lambda it, k: [len(w) * k for w in it.split()], lambda it, k: it.split()[k - 1::k][::-1],
    lambda it, k: [x for x in it if x > k], lambda it, k: [x for x in it if x % k],
    lambda it, k: sorted({{name for name, _ in it}}),
]

def attempt(form, it, k):
    try:
        return form(it, k)
    except Exception:
        return None

def solve(it):
    fits = {{(form, k): sum(attempt(form, a, k) == b for a, b in EXAMPLES) for form in FORMS for k in KS}}
    form, k = max(fits, key=fits.get)
    return attempt(form, it, k) if fits[form, k] else EXAMPLES[0][1]
"""


@pytest.mark.full
async def test_the_function_of_one_step_that_fits_the_examples_best_passes_few_tests(
    earned: Earned, players_of: Seats
) -> None:
    """Else a constant: the result of the first example."""

    async def submit(one: Any, prompt: str) -> None:
        statement, _, shown = prompt.partition("Examples:")
        examples = [tuple(map(_literal, line[6:].split(") == "))) for line in shown.strip().splitlines()]
        numbers = sorted({number for number in numbers_in(statement) if number}) or [1]
        await one.call("submit", code=ONE_STEP.format(examples=examples, numbers=numbers))

    assert await earned(players_of(sandbox.create_server()), PROGRAMS, submit) <= MOST


def _literal(text: str) -> Any:
    return json.loads(text.replace("'", '"'))
