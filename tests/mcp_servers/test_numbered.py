"""Counted answers: each is made once, and a dropped request does not take it along."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.server.mcpserver.exceptions import ToolError

from mcp_rollout.mcp_servers.kit import Numbered, OutOfOrder

pytestmark = pytest.mark.anyio


class Slow:
    """Makes answers when it is let, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.made = 0
        self.let = anyio.Event()

    async def __call__(self) -> str:
        self.made += 1
        number = self.made
        await self.let.wait()
        return f"answer {number}"


async def begun(slow: Slow, made: int = 1) -> None:
    with anyio.fail_after(20):
        while slow.made < made:
            await anyio.lowlevel.checkpoint()


@settings(deadline=None)
@given(st.lists(st.integers(min_value=-1, max_value=8)))
def test_whatever_is_asked_each_number_has_one_answer_for_good(asked: list[int]) -> None:
    async def ask_all() -> None:
        answers, given, made = Numbered[int]("reply"), dict[int, int](), list[int]()
        for seq in asked:
            try:
                answer = await answers.answer(seq, lambda: made.append(1) or len(made))
            except OutOfOrder:
                continue
            assert given.setdefault(seq, answer) == answer
        assert given == {seq: seq for seq in range(1, len(made) + 1)}

    anyio.run(ask_all)


async def test_repeats_while_an_answer_is_being_made_wait_for_the_same_one() -> None:
    answers, slow, got = Numbered[str]("reply"), Slow(), list[str]()

    async def ask() -> None:
        got.append(await answers.answer(1, slow))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(ask)
            await begun(slow)
            slow.let.set()
    assert got == ["answer 1"] * 8 and slow.made == 1


async def test_a_request_that_is_dropped_does_not_take_its_answer_along() -> None:
    answers, slow = Numbered[str]("reply"), Slow()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answers.answer, 1, slow)
            await begun(slow)
            tasks.cancel_scope.cancel()
        slow.let.set()
        assert await answers.answer(1, slow) == "answer 1"
    assert slow.made == 1


async def test_what_failed_was_not_answered_and_can_be_asked_for_again() -> None:
    answers, tried = Numbered[str]("reply"), list[int]()

    async def failing_once() -> str:
        tried.append(1)
        if len(tried) == 1:
            raise ToolError("the model is away")
        return "back"

    with pytest.raises(ToolError, match="the model is away"):
        await answers.answer(1, failing_once)
    assert await answers.answer(1, failing_once) == "back"


async def test_who_waits_for_an_answer_of_a_released_trajectory_is_told() -> None:
    answers, slow, said = Numbered[str]("reply"), Slow(), list[str]()

    async def ask() -> None:
        with pytest.raises(ToolError) as error:
            await answers.answer(1, slow)
        said.append(str(error.value))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await begun(slow)
            answers.close()
    assert "was released or restored meanwhile" in said[0]


async def test_what_is_being_made_for_a_world_that_is_replaced_is_given_up_and_its_number_is_free() -> None:
    answers, said = Numbered[str]("reply"), list[str]()

    class Stubborn(Slow):
        async def __call__(self) -> str:
            try:
                return await super().__call__()
            except asyncio.CancelledError:
                return "not awaited"

    async def ask(make: Any) -> None:
        with pytest.raises(ToolError, match="released or restored meanwhile") as error:
            await answers.answer(1, make)
        said.append(str(error.value))

    with anyio.fail_after(20):
        for maker in (Slow(), Stubborn()):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, maker)
                await begun(maker)
                answers.reopen()
        assert len(said) == 2 and len(answers) == 0
        assert await answers.answer(1, lambda: "another") == "another"


async def test_nothing_follows_the_last_answer_and_nothing_is_skipped() -> None:
    answers: Numbered[Any] = Numbered("reply", is_last=lambda answer: answer == "bye")
    with pytest.raises(OutOfOrder, match="the next one is 1"):
        await answers.answer(2, lambda: "hello")
    assert await answers.answer(1, lambda: "bye") == await answers.answer(1, lambda: "other") == "bye"
    with pytest.raises(OutOfOrder, match="was over after reply 1"):
        await answers.answer(2, lambda: "hello")
