"""A server of ours, in which one call in so many ends its process before or after its effect, or is answered late.

    python lab/benchmarks/reconcile/faulty_server.py SEED SHARE MODULE [ARGUMENT ...]

For trainings: each world needs a process of its own (`scope: process`, `start: fork`).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from mcp.server.mcpserver.tools.base import Tool

LATE_S = 2.0
_NUMBERS = itertools.count()


def breaking(function: Callable[..., Any], seed: str, share: float) -> Callable[..., Any]:
    """The function of a tool, some of whose calls break."""

    @functools.wraps(function)
    async def called(*arguments: Any, **named: Any) -> Any:
        # The process's number, since forks share all else.
        rng = Random(f"{seed}/{os.getpid()}/{next(_NUMBERS)}")
        kind = rng.choice(("before", "after", "late")) if rng.random() < share else ""
        if kind == "before":
            os._exit(1)
        result = function(*arguments, **named)
        result = await result if inspect.isawaitable(result) else result
        if kind == "after":
            os._exit(1)
        if kind == "late":
            await asyncio.sleep(LATE_S)
        return result

    return called


def main(seed: str, share: str, module: str, *arguments: str) -> None:
    made = Tool.from_function.__func__  # pyright: ignore[reportFunctionMemberAccess]

    def from_function(kind: type[Tool], function: Callable[..., Any], *given: Any, **named: Any) -> Tool:
        return made(kind, breaking(function, seed, float(share)), *given, **named)

    Tool.from_function = classmethod(from_function)  # pyright: ignore[reportAttributeAccessIssue]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[3])
    main(*sys.argv[1:])
