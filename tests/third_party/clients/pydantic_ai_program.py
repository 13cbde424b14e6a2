"""pydantic-ai as a program: `... MODEL_URL MCP_URL (chat|responses|messages) PROMPT`."""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits


async def main(model_url: str, mcp_url: str, dialect: str, prompt: str) -> None:
    if dialect == "messages":
        provider = AnthropicProvider(api_key="any", base_url=model_url.removesuffix("/v1"))
        model = AnthropicModel("policy", provider=provider)
    else:
        kind = OpenAIChatModel if dialect == "chat" else OpenAIResponsesModel
        model = kind("policy", provider=OpenAIProvider(base_url=model_url, api_key="any"))
    agent = Agent(model, system_prompt="Use the tools.", toolsets=[MCPToolset(mcp_url)])
    async with agent:
        sys.stdout.write(f"{(await agent.run(prompt, usage_limits=UsageLimits(request_limit=None))).output}\n")


asyncio.run(main(*sys.argv[1:]))
