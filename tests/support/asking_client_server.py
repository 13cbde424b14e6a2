"""A server of both protocol eras that asks its client, reports to it and has resources and prompts: `... HOST:PORT`."""

from __future__ import annotations

import sys

import anyio
from mcp import MCPError
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp_types import (
    Completion,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Name(BaseModel):
    name: str


server = MCPServer("asking", version="1", log_level="CRITICAL", instructions="Ask away.")
started, stopped = anyio.Event(), anyio.Event()


def question() -> InputRequiredResult:
    asked = ElicitRequest(params=ElicitRequestFormParams(message="Who?", requested_schema=NAME))
    return InputRequiredResult(input_requests={"name": asked}, request_state="mine.1")


def answered(ctx: Context) -> str:
    given = (ctx.input_responses or {}).get("name")
    return f"{getattr(given, 'content', None)} {ctx.request_state}"


@server.tool()
async def ask(ctx: Context) -> str:
    """Asks the client's user, as a request."""
    found = await ctx.elicit("Who?", Name)
    return f"{found.action} {found.data.name if found.action == 'accept' else ''}"


@server.tool()
async def sample(ctx: Context) -> str:
    """Asks the client's model."""
    said = SamplingMessage(role="user", content=TextContent(type="text", text="Say."))
    found = await ctx.session.create_message(messages=[said], max_tokens=9, related_request_id=ctx.request_id)
    return getattr(found.content, "text", "")


@server.tool()
async def roots(ctx: Context) -> str:
    """Lists the client's roots."""
    return " ".join(str(root.uri) for root in (await ctx.session.list_roots()).roots)


@server.tool()
async def ask_in_a_round(ctx: Context) -> str | InputRequiredResult:
    """Asks the client's user, as a result."""
    return answered(ctx) if ctx.input_responses else question()


@server.tool()
async def report(ctx: Context) -> str:
    """Reports progress and logs."""
    for step in (1, 2, 3):
        await ctx.report_progress(step, 3, f"step {step}")
    await ctx.session.send_log_message("warning", "a log line", related_request_id=ctx.request_id)
    return "reported"


@server.tool()
async def wait() -> str:
    """Waits until it is cancelled."""
    started.set()
    try:
        await anyio.sleep_forever()
    finally:
        stopped.set()


@server.tool()
async def was_stopped() -> bool:
    """Returns once `wait` was cancelled."""
    await stopped.wait()
    return True


@server.tool()
async def was_started() -> bool:
    """Returns once `wait` has begun."""
    await started.wait()
    return True


@server.tool()
async def fail() -> str:
    """Answers with an error of its own."""
    raise MCPError(code=-32077, message="of my own", data={"why": [1, 2]})


@server.resource("test://text", mime_type="text/plain", title="A text")
def text() -> str:
    """A text."""
    return "the text"


@server.resource("test://numbers/{number}")
def number(number: str) -> str:
    """A number."""
    return f"number {number}"


@server.prompt()
def greet(name: str) -> list[UserMessage]:
    """A greeting."""
    return [UserMessage(f"Hello, {name}.")]


@server.prompt()
async def greet_whom(ctx: Context) -> list[UserMessage] | InputRequiredResult:
    """A greeting that asks for the name."""
    return [UserMessage(answered(ctx))] if ctx.input_responses else question()


@server.completion()
async def complete(ref: object, argument: object, context: object) -> Completion:
    return Completion(values=[f"{getattr(argument, 'value', '')}land"], total=1, has_more=False)


if __name__ == "__main__":
    host, _, port = sys.argv[1].rpartition(":")
    server.run("streamable-http", host=host, port=int(port))
