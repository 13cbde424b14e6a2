"""verifiers' `Toolset(url=...)`, as its rollouts use one: `... URL NUMBER` plays so many at once.

Each has an address of its own, writes to its graph, waits until all have, reads, and deletes its world. What each has
read is printed.
"""

import asyncio
import json
import sys
import uuid
from contextlib import AsyncExitStack

import httpx
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.mcp import Toolset, ToolsetConfig, serve_tools
from verifiers.v1.runtimes import SubprocessConfig, make_runtime


class Memory(Toolset[ToolsetConfig]):
    TOOL_PREFIX = "memory"


def toolsets(url: str) -> list[Toolset]:
    """As `Task.toolsets`, which is called once for each rollout."""
    return [Memory(ToolsetConfig(url=f"{url}/{uuid.uuid4().hex}"))]


async def rollout(url: str, name: str, all_wrote: asyncio.Barrier, http: httpx.AsyncClient) -> list[str]:
    """The names in the rollout's graph."""
    runtime = make_runtime(SubprocessConfig(), name=name)
    async with serve_tools(toolsets(url), runtime) as urls:
        async with AsyncExitStack() as stack:
            servers = {name: {"url": each, "timeout": 120} for name, each in urls.items()}
            _, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)
            entity = {"name": name, "entityType": "rollout", "observations": ["began"]}
            await call_mcp(connections, dispatch, "memory_create_entities", {"entities": [entity]})
            await all_wrote.wait()
            graph = json.loads(str(await call_mcp(connections, dispatch, "memory_read_graph", {})))
        for each in urls.values():  # a `finalize` can; otherwise the worlds end when they are idle
            (await http.delete(each)).raise_for_status()
    return [each["name"] for each in graph["entities"]]


async def main(url: str, number: int) -> None:
    all_wrote, names = asyncio.Barrier(number), [f"rollout-{each}" for each in range(number)]
    async with httpx.AsyncClient(timeout=60) as http:
        found = await asyncio.gather(*(rollout(url, name, all_wrote, http) for name in names))
    sys.stdout.write(json.dumps(dict(zip(names, found, strict=True))) + "\n")


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
