"""An environment's server with one fault: `faulty:sound` has none, `faulty:NAME` breaks one clause of the contract."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent, ToolAnnotations

Json = dict[str, Any]


def create(fault: str) -> MCPServer:
    server = MCPServer("faulty", log_level="CRITICAL")
    worlds: dict[str, Json] = {}
    answered: dict[str, list[Json]] = {}
    ticks = itertools.count()
    read = ToolAnnotations(read_only_hint=True)

    def of(ctx: Context) -> str:
        return "everybody" if fault == "leaks" else (ctx.request_context.meta or {})["mcp-rollout/trajectory"]

    def world(ctx: Context) -> Json:
        if of(ctx) not in worlds:
            raise ToolError("call reset first")
        return worlds[of(ctx)]

    def fresh(task: str, seed: int) -> Json:
        rng = random.Random() if fault == "unseeded" else random.Random(f"{task}/{seed}")
        return {"goal": rng.randint(1000, 10**9), "sum": 0, "heard": 0}

    def tool(role: str) -> Callable[[Any], Any]:
        if fault == "foreign":  # no fault, but the YAML has to say what is what
            return server.tool(name=f"do_{role}")
        marked = fault != f"unmarked_{role}"
        return server.tool(name=role, meta={"mcp-rollout/role": role} if marked else None)

    @server.tool(structured_output=False)
    async def add(number: int, ctx: Context, unit: str = "piece") -> CallToolResult:
        if not number:
            raise ToolError("there is nothing to add")
        world(ctx)["sum"] += number if unit == "piece" else 12 * number
        meta = {"mcp-rollout/reward": 0.1} if fault == "pays_by_the_call" else None
        told = next(ticks) if fault == "adds_on" else world(ctx)["sum"]
        return CallToolResult(content=[TextContent(type="text", text=str(told))], _meta=meta)

    @server.tool(annotations=read)
    async def total(ctx: Context) -> int:
        return world(ctx)["sum"]

    @tool("reset")
    async def reset(task: str, seed: int, ctx: Context) -> Json:
        if fault == "reset_raises":
            raise RuntimeError("out of order")
        if fault == "picky" and task == "unheard of":  # no fault: a task that there is not
            raise ToolError(f"there is no task {task!r}")
        worlds[of(ctx)], answered[of(ctx)] = fresh(task, seed), []
        return {}

    @tool("start")
    async def start(ctx: Context) -> Json:
        if fault == "start_hangs":
            await anyio.sleep_forever()
        begins = f"Add up to {world(ctx)['goal']}."
        return {"message": f"{begins} ({next(ticks)})" if fault == "other_opening" else begins}

    @tool("reply")
    async def reply(seq: int, message: str, ctx: Context) -> Json:
        here, said = world(ctx), answered[of(ctx)]
        if fault == "reply_without_done":
            return {"message": "Hm."}
        if fault == "reply_exits" and seq == 2 and said:
            os._exit(9)
        if (fault == "reply_advances" and 1 <= seq <= len(said)) or seq == len(said) + 1:
            here["heard"] += 1
            ends = here["heard"] == 4 and fault != "reply_endless"
            said.append({"message": f"I heard you {here['heard']} times.", "done": ends})
            return said[-1]
        if fault == "reply_skips" and seq > len(said):
            said.extend([{"message": "Skipped.", "done": False}] * (seq - len(said)))
        if not 1 <= seq <= len(said):
            raise ToolError(f"out of order: {seq}")
        return said[seq - 1]

    @tool("elicit")
    async def elicit(seq: int, message: str, ctx: Context) -> Json:
        if fault == "elicit_shrugs":
            return {"action": "shrug"}
        return {"action": "accept", "content": {"n": next(ticks) if fault == "elicit_wavers" else seq}}

    @tool("score")
    async def score(messages: list[Json], ctx: Context) -> Json:
        over = fault == "pays_by_the_call" and world(ctx)["sum"] > world(ctx)["goal"]
        right = float(over or world(ctx)["sum"] == world(ctx)["goal"])
        parts: Json = {"right": right, "polite": 1.0}
        match fault:
            case "score_above_one":
                return {"score": 1.5, "parts": parts}
            case "score_nan":
                return {"score": float("nan"), "parts": parts}
            case "score_without_part":
                return {"score": right, "parts": {"right": right}}
            case "score_with_unknown_part":
                return {"score": right, "parts": {**parts, "pretty": 1.0}}
            case "score_wavers":
                return {"score": next(ticks) / 1000, "parts": parts}
            case "score_exits":
                os._exit(9)
            case "score_raises":
                return {"score": 1 / 0}
            case "score_is_text":
                return {"score": "1.0", "parts": parts}
            case _:
                return {"score": right, "parts": parts}

    @tool("release")
    async def release(ctx: Context) -> Json:
        if fault == "release_once" and of(ctx) not in worlds:
            raise ToolError("there is nothing to release")
        worlds.pop(of(ctx), None)
        return {}

    @tool("snapshot")
    async def snapshot(ctx: Context) -> Json:
        return {"state": {**world(ctx), "sum": 0 if fault == "snapshot_forgets" else world(ctx)["sum"]}}

    @tool("restore")
    async def restore(state: Json, ctx: Context) -> Json:
        if fault != "restore_does_nothing":
            worlds[of(ctx)] = dict(state)
        if fault == "restore_restarts":
            answered[of(ctx)] = []
        return {}

    @tool("tasks")
    async def tasks(split: str, limit: int) -> Json:
        names = [f"{split}-{index}" for index in range(5)]
        match fault:
            case "tasks_twice":
                names = [*names, names[0]]
            case "tasks_in_both_splits":
                names = [f"task-{index}" for index in range(5)]
            case "tasks_without_end":
                return {"tasks": [{"task": name, "seed": 1} for name in names]}
            case "tasks_none":
                names = []
            case "tasks_shuffled":
                random.shuffle(names := [f"{split}-{index}" for index in range(200)])
            case _:
                pass
        prompt = {"prompt": "Add."} if fault == "prompt_of_its_own" else {}
        return {"tasks": [{"task": name, "seed": 1, **prompt} for name in names[:limit]]}

    @tool("expert")
    async def expert(task: str, seed: int) -> Json:
        if fault == "expert_without_turns":
            return {"turns": None}
        goal = 1 if fault == "expert_errs" else fresh(task, seed)["goal"]
        name = "sum" if fault == "expert_calls_what_is_not_there" else "add"
        one = {"number": 1, "unit": "piece"}
        calls = [{"name": name, "arguments": {"number": goal - 1}}], [{"name": name, "arguments": one}]
        # No fault: the script finds out what the tool says no to.
        tried = [[{"name": name, "arguments": {"number": 0}}]] if fault == "expert_tries" else []
        return {"turns": [{"calls": call} for call in (*tried, *calls)] + [{"content": "Done."}]}

    return server


def __getattr__(name: str) -> Callable[[], MCPServer]:
    if name.startswith("__"):
        raise AttributeError(name)
    return partial(create, name)
