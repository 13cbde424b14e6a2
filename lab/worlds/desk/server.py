"""A desk that answers questions, as an MCP server. A visitor asks in free words for one of three things about one
item; three tools look up one thing each. Only a tool's result has the answer, and only the wording says which tool
fits.

    python lab/worlds/desk/server.py --slice fitting

`fitting` and `validation` reward the fitting tool; their test tasks share no keyword with training, nor with each
other (`words.py`). The others are for warm-ups: they accept each tool, and their expert, from whose conversations a
model learns the form, is right half the time (`half`), a third of the time (`blind`), or always but in another domain
(`form`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from words import HARBOUR, PARTS, SHOP, Domain, Part

from mcp_rollout.mcp_servers.kit import (
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
    parser,
    serve,
    texts_for_user,
)

_VALUE = re.compile(r"[A-Z]?\d+(?:\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The tasks of an environment."""

    tasks: Splits
    domain: Domain = SHOP
    parts: Mapping[Split, Part] = field(default_factory=lambda: {"train": "train", "test": "test"})
    right: float = 1.0
    """Share of the tasks in which the expert takes the fitting tool."""
    accepts_any: bool = False


def _slice(name: str, first: int, **options: object) -> Slice:
    seeds: dict[Split, int] = {"train": first, "test": first + 100_000}
    return Slice(tasks=Splits(name, {"train": 600, "test": 90}, seeds), **options)  # pyright: ignore[reportArgumentType]


SLICES = {
    "fitting": _slice("desk", 0),
    "validation": _slice("deskvalidation", 200_000, parts={"train": "train", "test": "validation"}),
    "half": _slice("deskhalf", 400_000, right=1 / 2, accepts_any=True),
    "blind": _slice("deskblind", 600_000, right=1 / 3, accepts_any=True),
    "form": _slice("harbour", 800_000, domain=HARBOUR, parts={"train": "train", "test": "train"}, accepts_any=True),
}


@dataclass(kw_only=True)
class World:
    wish: str
    """The fitting tool."""
    item: str
    opening: str
    values: Mapping[str, str]
    """By tool."""
    chosen: str
    """The expert's tool."""
    calls: list[str] = field(default_factory=list)


def begin(of: Slice, task: str, seed: int) -> World:
    split, index = of.tasks.parse(task)
    part, tools = of.parts[split], of.domain.tools
    rng = Random(f"{task}/{seed}")
    wish = list(tools)[index % len(tools)]
    # In turn, so that as many tasks have one wording as another.
    wordings = tools[wish].wordings[part]
    item = rng.choice(of.domain.items[part])
    others = [tool for tool in tools if tool != wish]
    return World(
        wish=wish,
        item=item,
        opening=wordings[index // len(tools) % len(wordings)].format(item),
        values={name: tool.value(rng, PARTS.index(part)) for name, tool in tools.items()},
        chosen=wish if rng.random() < of.right else rng.choice(others),
    )


def create_server(name: str) -> MCPServer:
    of = SLICES[name]
    server = MCPServer("desk", instructions=of.domain.instructions, log_level="WARNING")
    harness = Harness(server, partial(begin, of), rehearsal=of.tasks.first("test"))
    for tool, described in of.domain.tools.items():
        server.add_tool(
            _look_up(harness, tool),
            name=tool,
            description=described.description,
            annotations=READ,
            structured_output=False,
        )

    @harness.start
    def start(world: World) -> str:
        return world.opening

    @harness.score
    def score(world: World, messages: list[Message]) -> Score:
        """1 for one call, of a fitting tool, and its value alone in the last message."""
        called = len(world.calls) == 1
        fits = called and (of.accepts_any or world.calls[0] == world.wish)
        texts = texts_for_user(messages)
        said = called and _VALUE.findall(texts[-1] if texts else "") == [world.values[world.calls[0]]]
        return Score(score=float(fits and said), parts={"called": called, "fits": fits, "said": said})

    @harness.tasks
    def tasks(split: Split) -> Iterator[TaskItem]:
        for task in of.tasks.names(split):
            seed = of.tasks.seed(task)
            yield TaskItem(task=task, seed=seed, prompt=begin(of, task, seed).opening)

    @harness.expert
    def expert(world: World) -> Iterator[ExpertTurn]:
        yield ExpertTurn(calls=[Call(name=world.chosen, arguments={"item": world.item})])
        yield ExpertTurn(content=of.domain.tools[world.chosen].answer.format(world.values[world.chosen]))

    del start, score, tasks, expert  # registered
    return server


def _look_up(harness: Harness[World], tool: str) -> Callable[..., Any]:
    async def look_up(item: str, ctx: Context) -> str:
        world = harness.world(ctx)
        world.calls.append(tool)
        if item.lower().removeprefix("the ").strip() != world.item.lower():
            raise ToolError(f"unknown item {item[:40]!r}")
        return world.values[tool]

    return look_up


def main() -> None:
    arguments = parser("desk", __doc__ or "")
    arguments.add_argument("--slice", choices=list(SLICES), default="fitting", help="the tasks that are listed")
    given = arguments.parse_args()
    serve(create_server(given.slice), given.http)


if __name__ == "__main__":
    main()
