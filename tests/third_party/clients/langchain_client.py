"""langchain-mcp-adapters, a session for each call: `... URL TEXT` writes, calls another tool, prints what it reads."""

import asyncio
import sys

from langchain_mcp_adapters.client import MultiServerMCPClient


async def main(url: str, text: str) -> None:
    client = MultiServerMCPClient({"store": {"transport": "streamable_http", "url": url}})
    tools = {tool.name: tool for tool in await client.get_tools()}
    await tools["put"].ainvoke({"text": text})
    await tools["echo"].ainvoke({"text": "between"})
    sys.stdout.write((await tools["get"].ainvoke({}))[0]["text"] + "\n")


asyncio.run(main(*sys.argv[1:]))
