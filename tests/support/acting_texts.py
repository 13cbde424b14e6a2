"""An environment whose every text acts on a terminal: `python acting_texts.py`, or `... dies` to fail at the start."""

import sys
from collections.abc import Iterator
from typing import Any

from mcp.server.mcpserver import Context, MCPServer

from mcp_rollout.mcp_servers.kit import Call, ExpertTurn, Harness, Message, Score, Split, TaskItem, ToolError, main

ACTS = (
    "[red]marked[/red] [link=http://example.org]up[/link] [/]"  # markup of rich
    "\x1b]52;c;c2VjcmV0\x07"  # fills the clipboard
    "\x1b[1A\x1b[2K\r\x9b1A\x08"  # moves the cursor, erases the line
    "\x1b[8mconcealed\x1b[0m"
    "\u202etxt.exe\u202c\u2066\u200b\U000e0041"
)

server = MCPServer(f"acting {ACTS}", instructions=f"Behave. {ACTS}", log_level="WARNING")
harness = Harness(server, lambda task, seed: f"{task} {ACTS}")


@server.tool(description=f"Reads. {ACTS}")
async def read(ctx: Context) -> str:
    return f"read {ACTS}\nsecond line {ACTS}"


@server.tool(name="odd\x1b[8m")
async def odd(ctx: Context) -> str:
    """Of an odd name."""
    return "odd"


@server.tool()
async def refuse(ctx: Context) -> str:
    """Refuses."""
    raise ToolError(f"refused {ACTS}")


@server.tool()
async def die(ctx: Context) -> str:
    """Ends its process."""
    sys.stderr.write(f"dying {ACTS}\n")
    sys.stderr.flush()
    sys.exit(f"dead {ACTS}")


@harness.start
def start(world: str) -> str:
    return f"Read it. {ACTS}"


@harness.score
def score(world: str, messages: list[Message]) -> Score:
    return Score(score=0.5, parts={f"part{ACTS}": 0.5, "part": 1.0})


@harness.tasks
def tasks(split: Split) -> Iterator[TaskItem]:
    yield TaskItem(task=f"task {ACTS}", seed=0)


@harness.expert
def expert(world: str) -> Iterator[ExpertTurn]:
    yield ExpertTurn(
        thinking=f"think {ACTS}", calls=[Call(name="read", arguments={}), Call(name="refuse", arguments={})]
    )
    none: dict[str, Any] = {"x": ACTS}
    yield ExpertTurn(content=f"calls {ACTS}", calls=[Call(name=f"unknown{ACTS}", arguments=none)])
    yield ExpertTurn(content=f"done {ACTS}")


if __name__ == "__main__":
    if sys.argv[1:] == ["dies"]:
        sys.exit(f"no licence {ACTS}")
    main(server)
