"""The tool calls of verifiers' chat harness: the module that it puts into its programs, as it puts it there.

Its source is bundled into programs that have mcp, httpx2 and tenacity only, so it is loaded from its file, without the
package around it.
"""

# Run by an interpreter of its own.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import importlib.util
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import distribution
from typing import Any

from lab.benchmarks.faults.workload import Call, Open, main

MODULE = "verifiers/v1/harnesses/utils/mcp.py"
BEST = {"timeout": 2.0}
"""`tool_timeout` of a harness's configuration; the number of attempts is a constant."""


def harness_module() -> Any:
    path = str(distribution("verifiers").locate_file(MODULE))
    specification = importlib.util.spec_from_file_location("harness_mcp", path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@asynccontextmanager
async def connect(target: dict[str, Any], best: bool) -> AsyncGenerator[Open]:
    module = harness_module()
    settings = {"mcpServers": {"": {**target, "timeout": 600.0, **(BEST if best else {})}}}

    @asynccontextmanager
    async def opened(trajectory: str) -> AsyncGenerator[Call]:
        async with AsyncExitStack() as stack:
            _, dispatch, servers = await module.connect_mcp(settings, stack)

            async def call(tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
                # The harness turns error results into ordinary texts, too.
                return await module.call_mcp(servers, dispatch, tool, arguments), False

            yield call

    yield opened


if __name__ == "__main__":
    main(connect)
