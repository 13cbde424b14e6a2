"""The conformance suite's server, on the kit or on the SDK alone: `conformance_server.py kit|sdk HOST:PORT`.

Names and texts are the suite's. Left out is what the suite asks of the SDK alone: subscriptions, resumable streams.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp_types import (
    AudioContent,
    Completion,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel, Field

from mcp_rollout.mcp_servers.kit import ToolError, main

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SOUND = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Response(BaseModel):
    response: str = Field(description="What the user says")


def ask_name(message: str = "What is your name?") -> ElicitRequest:
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=NAME))


def ask_model(prompt: str = "What is the capital of France?") -> CreateMessageRequest:
    said = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[said], max_tokens=100))


def resource(uri: str, text: str, kind: str = "text/plain") -> EmbeddedResource:
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, mime_type=kind, text=text))


def image() -> ImageContent:
    return ImageContent(type="image", data=PIXEL, mime_type="image/png")


def add_contents(server: MCPServer) -> None:
    @server.tool()
    def test_simple_text() -> str:
        """A text."""
        return "This is a simple text response for testing."

    @server.tool()
    def test_image_content() -> list[ImageContent]:
        """An image."""
        return [image()]

    @server.tool()
    def test_audio_content() -> list[AudioContent]:
        """A sound."""
        return [AudioContent(type="audio", data=SOUND, mime_type="audio/wav")]

    @server.tool()
    def test_embedded_resource() -> list[EmbeddedResource]:
        """A resource in a result."""
        return [resource("test://embedded-resource", "This is an embedded resource content.")]

    @server.tool()
    def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
        """Three kinds of content."""
        text = TextContent(type="text", text="Multiple content types test:")
        data = resource("test://mixed-content-resource", '{"test": "data", "value": 123}', "application/json")
        return [text, image(), data]

    @server.tool()
    def test_error_handling() -> str:
        """An error."""
        raise ToolError("This tool intentionally returns an error for testing")

    @server.tool()
    async def test_tool_with_progress(ctx: Context) -> str:
        """Progress in three steps."""
        for step in (0, 50, 100):
            await ctx.report_progress(step, 100, f"Completed step {step} of 100")
        return "done"

    @server.tool()
    async def test_tool_with_logging(ctx: Context) -> str:
        """Three lines of log."""
        for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await ctx.session.send_log_message("info", text, related_request_id=ctx.request_id)
        return "done"

    @server.tool()
    async def test_custom_headers(
        region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
        priority: Annotated[int, Field(json_schema_extra={"x-mcp-header": "Priority"})] = 0,
        verbose: Annotated[bool, Field(json_schema_extra={"x-mcp-header": "Verbose"})] = False,
    ) -> str:
        """Arguments that are mirrored in headers."""
        return f"{region} {priority} {verbose}"


def add_questions(server: MCPServer) -> None:
    @server.tool()
    async def test_sampling(prompt: str, ctx: Context) -> str:
        """Asks the client's model."""
        said = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
        result = await ctx.session.create_message(messages=[said], max_tokens=100, related_request_id=ctx.request_id)
        return f"LLM response: {getattr(result.content, 'text', '')}"

    @server.tool()
    async def test_elicitation(message: str, ctx: Context) -> str:
        """Asks the client's user."""
        result = await ctx.elicit(message, Response)
        return f"User response: action={result.action}, content={getattr(result, 'data', None)}"

    def round_tool(name: str, requests: dict[str, Any], state: str | None = None) -> None:
        @server.tool(name=name)
        async def asks(ctx: Context) -> str | InputRequiredResult:
            """Asks in a round before it answers."""
            answers = ctx.input_responses or {}
            if not requests.keys() <= answers.keys():
                return InputRequiredResult(input_requests=requests, request_state=state)
            if state is not None and ctx.request_state != state:
                raise ToolError("the state is not the one that was given")
            kept = " state-ok" if state else ""
            return f"{json.dumps({key: str(answer) for key, answer in answers.items()})}{kept}"

    round_tool("test_input_required_result_elicitation", {"user_name": ask_name()})
    round_tool("test_input_required_result_sampling", {"capital_question": ask_model()})
    round_tool("test_input_required_result_list_roots", {"client_roots": ListRootsRequest()})
    round_tool("test_input_required_result_request_state", {"confirm": ask_name("Please confirm")}, "kept")
    round_tool("test_input_required_result_tampered_state", {"confirm": ask_name("Please confirm")}, "kept")
    several = {"user_name": ask_name(), "greeting": ask_model("Greet"), "client_roots": ListRootsRequest()}
    round_tool("test_input_required_result_multiple_inputs", several, "kept")

    @server.tool()
    async def test_input_required_result_multi_round(ctx: Context) -> str | InputRequiredResult:
        """Two rounds."""
        if not ctx.request_state:
            return InputRequiredResult(input_requests={"step1": ask_name()}, request_state="one")
        if ctx.request_state == "one":
            return InputRequiredResult(input_requests={"step2": ask_name("Which color?")}, request_state="two")
        return "done"


def add_resources_and_prompts(server: MCPServer) -> None:
    @server.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        """A text."""
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        """An image."""
        return base64.b64decode(PIXEL)

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def template(id: str) -> str:
        """Data of an id."""
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})

    @server.prompt()
    def test_simple_prompt() -> list[UserMessage]:
        """A prompt."""
        return [UserMessage("This is a simple prompt for testing.")]

    @server.prompt()
    def test_prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage]:
        """A prompt with arguments."""
        return [UserMessage(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'")]

    @server.prompt()
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
        """A prompt with a resource."""
        return [
            UserMessage(resource(resourceUri, "Embedded resource content for testing.")),
            UserMessage("Process it."),
        ]

    @server.prompt()
    def test_prompt_with_image() -> list[UserMessage]:
        """A prompt with an image."""
        return [UserMessage(image()), UserMessage("Please analyze the image above.")]

    @server.completion()
    async def complete(ref: Any, argument: Any, context: Any) -> Completion:
        return Completion(values=[], total=0, has_more=False)


def create_server() -> MCPServer:
    server = MCPServer("conformance", version="1", log_level="CRITICAL")
    add_contents(server)
    add_questions(server)
    add_resources_and_prompts(server)
    return server


if __name__ == "__main__":
    made = create_server()
    if sys.argv[1] == "kit":
        main(made, arguments=["--http", sys.argv[2]])
    else:
        host, _, port = sys.argv[2].rpartition(":")
        made.run("streamable-http", host=host, port=int(port))
