"""NAME: bring a counter to a number, and say what it showed at first.

This file is the whole environment: the world of a trajectory, the tools that the policy calls, and the harness that
lists tasks and computes the score. It is an ordinary MCP server; start it with `python server.py` (stdio) or
`python server.py --http 127.0.0.1:8000`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from pydantic import Field

from mcp_rollout.mcp_servers.kit import (
    NOTE,
    READ,
    Call,
    ExpertTurn,
    Harness,
    Message,
    Score,
    Split,
    Splits,
    TaskItem,
    ToolError,
    main,
    texts_for_user,
)

INSTRUCTIONS = """\
You look after a counter that shows a number from 0 to 99. Look at it first, then change it with the tools. When it
shows the number that was asked for, end with one line of exactly this form:
First: N
where N is what the counter showed before you changed it."""

TASKS = Splits("NAME", {"train": 100, "test": 100})
MOST = 99


@dataclass
class World:
    """The state of one trajectory, derived from the task and the seed alone."""

    goal: int
    first: int
    shown: int


def begin(task: str, seed: int) -> World:
    TASKS.parse(task)  # raises LookupError if there is no such task
    random = Random(f"{task}/{seed}")  # a str seeds equally in every process; hash() would not
    goal, first = random.sample(range(MOST + 1), 2)
    return World(goal=goal, first=first, shown=first)


server = MCPServer("NAME", instructions=INSTRUCTIONS, log_level="WARNING")
harness = Harness(server, begin)

# The policy's tools. Their names, docstrings and types are all that the policy sees of them.


@server.tool(annotations=READ)
async def look(ctx: Context) -> int:
    """What the counter shows."""
    return harness.world(ctx).shown


@server.tool(annotations=NOTE.model_copy(update={"idempotent_hint": False}))
async def turn(
    steps: Annotated[int, Field(description="Forward; negative ones go backward", ge=-MOST, le=MOST)], ctx: Context
) -> int:
    """Turn the counter, and see what it shows then."""
    world = harness.world(ctx)
    if not 0 <= world.shown + steps <= MOST:
        raise ToolError(f"the counter goes from 0 to {MOST} and shows {world.shown}")
    world.shown += steps
    return world.shown


# The harness. The rollout calls it; the policy never sees it.


@harness.start
def start(world: World) -> str:
    return f"Bring the counter to {world.goal}, please. What did it show at first?"


@harness.score
def score(world: World, messages: list[Message]) -> Score:
    """Half for the counter, half for the answer in the last message."""
    texts = texts_for_user(messages)
    answers = re.findall(r"^First: (\d+)$", texts[-1], re.MULTILINE) if texts else []
    reached = float(world.shown == world.goal)
    answered = float(answers == [str(world.first)])
    return Score(score=(reached + answered) / 2, parts={"reached": reached, "answered": answered})


@harness.tasks
def tasks(split: Split) -> Iterator[TaskItem]:
    for task in TASKS.names(split):
        yield TaskItem(task=task, seed=TASKS.seed(task))


@harness.expert
def expert(world: World) -> Iterator[ExpertTurn]:
    yield ExpertTurn(thinking="What does it show?", calls=[Call(name="look", arguments={})])
    steps = world.goal - world.first
    yield ExpertTurn(thinking=f"{steps} steps.", calls=[Call(name="turn", arguments={"steps": steps})])
    yield ExpertTurn(content=f"It shows {world.goal} now.\nFirst: {world.first}")


if __name__ == "__main__":
    main(server)
