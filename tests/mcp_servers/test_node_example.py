"""The environment in JavaScript, examples/node: what its guest takes for an answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import StdioServerParameters
from third_party import NODE

pytestmark = pytest.mark.anyio
Seats = Callable[..., AbstractAsyncContextManager[Callable[[str], Any]]]
SERVER = StdioServerParameters(command=NODE, args=[str(Path(__file__).parents[2] / "examples" / "node" / "server.mjs")])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("That is {price} crowns.", 0.5),
        ("{price}", 0.5),
        (" ".join(f"{number}" for number in range(1, 61)), 0.0),
        ("{price} crowns, or {more}.", 0.0),
        ("{price}.5", 0.0),
        ("It costs money.", 0.0),
    ],
)
async def test_the_price_is_told_by_a_message_with_that_number_alone(players_of: Seats, said: str, told: float):
    with anyio.fail_after(60):
        async with players_of(SERVER) as player:
            one = player("a")
            await one.begin("test-3", 7)
            script = await one.harness(one.world, "expert", task="test-3", seed=7)
            price = int(re.findall(r"\d+", script["turns"][2]["content"])[0])
            await one.say(said.format(price=price, more=price + 1))
            assert (await one.score())["parts"] == {"order": 0, "told": told}
