"""openai-agents as a program: `... MODEL_URL MCP_URL (chat|responses) (whole|streamed) PROMPT`."""

import asyncio
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp
from openai import AsyncOpenAI


async def main(model_url: str, mcp_url: str, dialect: str, how: str, prompt: str) -> None:
    set_tracing_disabled(True)
    kind = OpenAIChatCompletionsModel if dialect == "chat" else OpenAIResponsesModel
    model = kind(model="policy", openai_client=AsyncOpenAI(base_url=model_url, api_key="any"))
    async with MCPServerStreamableHttp(params={"url": mcp_url}, client_session_timeout_seconds=60) as world:
        agent = Agent(name="A", instructions="Use the tools.", model=model, mcp_servers=[world])
        if how == "streamed":
            result = Runner.run_streamed(agent, prompt, max_turns=200)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, prompt, max_turns=200)
        sys.stdout.write(f"{result.final_output}\n")


asyncio.run(main(*sys.argv[1:]))
