"""FastMCP's client: `... URL TEXT` writes, calls another tool, and prints what it reads."""

import asyncio
import sys

from fastmcp import Client


async def main(url: str, text: str) -> None:
    async with Client(url) as client:
        await client.call_tool("put", {"text": text})
        await client.call_tool("echo", {"text": "between"})
        sys.stdout.write((await client.call_tool("get", {})).content[0].text + "\n")


asyncio.run(main(*sys.argv[1:]))
