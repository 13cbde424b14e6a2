"""Siblings find each other, whatever order they end in, and whatever else is played at the same time."""

from __future__ import annotations

import asyncio
import random

import pytest

from mcp_rollout.rollout.areal.groups import Groups

pytestmark = pytest.mark.anyio


async def sibling(groups: Groups[tuple[str, int]], key: str, pauses: int) -> tuple[int, list[tuple[str, int]]]:
    group, number = await groups.join(key)
    for _ in range(pauses):
        await asyncio.sleep(0)
    group.hand_in(number, (key, number))
    return number, await group.results()


async def test_each_sibling_gets_the_results_of_its_own_group() -> None:
    chance, groups = random.Random(1), Groups[tuple[str, int]]()
    sizes = {f"row {row}": chance.randint(1, 9) for row in range(20)}

    async def played(key: str, size: int) -> None:
        found = await asyncio.gather(*[sibling(groups, key, chance.randint(0, 30)) for _ in range(size)])
        assert [number for number, _ in found] == list(range(size))
        assert all(results == [(key, number) for number in range(size)] for _, results in found)

    await asyncio.wait_for(asyncio.gather(*[played(*item) for item in sizes.items()]), 30)


async def test_a_later_group_with_the_same_key_is_another_one() -> None:
    groups = Groups[tuple[str, int]]()
    for _ in range(3):
        found = await asyncio.wait_for(asyncio.gather(*[sibling(groups, "row", 3 - n) for n in range(3)]), 30)
        assert [number for number, _ in found] == [0, 1, 2]


async def test_a_group_is_not_complete_before_its_last_sibling() -> None:
    groups = Groups[int]()
    joined = await asyncio.gather(*[groups.join("row") for _ in range(2)])
    (group, first), (same, second) = joined
    assert group is same
    group.hand_in(first, 1)
    waiting = asyncio.create_task(group.results())
    await asyncio.sleep(0)
    assert not waiting.done()
    group.hand_in(second, 2)
    assert await asyncio.wait_for(waiting, 30) == [1, 2]
