"""A whole environment in one file: guess a number between 1 and 100 with a tool that says higher or lower.

An ordinary MCP server. What makes it an environment is the role in the `_meta` of five tools, which the policy never
sees, and the trajectory id in every request, by which it keeps worlds apart.
"""

import random
from typing import Any

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("guess", instructions="Find the number between 1 and 100. Say it when you know it.")
secrets: dict[str, int] = {}


def trajectory(ctx: Context) -> str:
    return (ctx.request_context.meta or {}).get("mcp-rollout/trajectory", "")


def secret_for(task: str, seed: int) -> int:
    return random.Random(f"{task}/{seed}").randint(1, 100)


@server.tool()
async def guess(number: int, ctx: Context) -> str:
    """Compare a guess with the number."""
    secret = secrets[trajectory(ctx)]
    return "correct" if number == secret else "higher" if number < secret else "lower"


@server.tool(meta={"mcp-rollout/role": "reset"})
async def reset(task: str, seed: int, ctx: Context) -> dict[str, Any]:
    secrets[trajectory(ctx)] = secret_for(task, seed)
    return {}


@server.tool(meta={"mcp-rollout/role": "score"})
async def score(messages: list[dict[str, Any]], ctx: Context) -> dict[str, Any]:
    last = messages[-1]["content"] if messages[-1]["role"] == "assistant" else ""
    found = float(last.split() == ["It", "is", f"{secrets[trajectory(ctx)]}."])
    return {"score": found, "parts": {"found": found}}


@server.tool(meta={"mcp-rollout/role": "release"})
async def release(ctx: Context) -> dict[str, Any]:
    secrets.pop(trajectory(ctx), None)
    return {}


@server.tool(meta={"mcp-rollout/role": "tasks"})
async def tasks(split: str, limit: int) -> dict[str, Any]:
    prompt = "Which number is it? Answer in the form: It is N."
    names = [f"{split}-{number}" for number in range(min(limit, 50))]
    return {"tasks": [{"task": name, "seed": 7, "prompt": prompt} for name in names]}


@server.tool(meta={"mcp-rollout/role": "expert"})
async def expert(task: str, seed: int) -> dict[str, Any]:
    secret, low, high, turns = secret_for(task, seed), 1, 100, list[dict[str, Any]]()
    while True:
        middle = (low + high) // 2
        call = {"name": "guess", "arguments": {"number": middle}}
        turns.append({"thinking": f"Between {low} and {high}.", "calls": [call]})
        if middle == secret:
            return {"turns": [*turns, {"content": f"It is {secret}."}]}
        low, high = (middle + 1, high) if middle < secret else (low, middle - 1)


if __name__ == "__main__":
    server.run("stdio")
