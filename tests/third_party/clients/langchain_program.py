"""langchain as a program, a session of MCP for each call: `... MODEL_URL MCP_URL PROMPT`."""

import asyncio
import sys

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_openai import ChatOpenAI


async def main(model_url: str, mcp_url: str, prompt: str) -> None:
    client = MultiServerMCPClient({"world": {"transport": "streamable_http", "url": mcp_url}})
    model = ChatOpenAI(model="policy", base_url=model_url, api_key="any")
    agent = create_agent(model, await client.get_tools(), system_prompt="Use the tools.")
    result = await agent.ainvoke({"messages": [("user", prompt)]}, {"recursion_limit": 1000})
    sys.stdout.write(f"{result['messages'][-1].content}\n")


asyncio.run(main(*sys.argv[1:]))
