"""What the official conformance suite's scenarios ask of a client, done with a gateway.

What counts is what the suite's server saw; `play` only says when it is done.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlparse

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from mcp_rollout import Gateway, GatewayConfig, GatewayError, Session

Context = dict[str, Any]
"""What the suite tells a scenario's client: credentials, calls to make."""
REDIRECT = "http://localhost:3000/callback"


def user() -> MCPServer:
    """Who answers elicitation: says yes, and takes the defaults of what it is asked for."""
    server = MCPServer("user", log_level="ERROR")

    @server.tool(meta={"mcp-rollout/role": "elicit"})
    def elicit(message: str, schema: dict[str, Any]) -> dict[str, Any]:
        asked = schema.get("properties", {})
        content = {name: field["default"] for name, field in asked.items() if "default" in field}
        content |= (
            {name: True for name, field in asked.items() if field.get("type") == "boolean"} if not content else {}
        )
        return {"action": "accept", "content": content}

    return server


Play = Callable[[Session, Context], Awaitable[None]]


def stub(schema: dict[str, Any]) -> dict[str, Any]:
    """The least that a tool's schema asks for."""
    values = {"string": "x", "integer": 0, "number": 0, "boolean": False, "object": {}, "array": []}
    properties = schema.get("properties", {})
    return {name: values.get(properties.get(name, {}).get("type"), "x") for name in schema.get("required", [])}


async def add_numbers(session: Session, _: Context) -> None:
    await session.call("add_numbers", {"a": 5, "b": 3})


async def first_tool(session: Session, _: Context) -> None:
    for name in list(session.tools)[:1]:
        await session.call(name, {})


async def every_tool(session: Session, _: Context) -> None:
    for name, tool in session.tools.items():
        await session.call(name, stub(tool.input_schema))


async def given_calls(session: Session, context: Context) -> None:
    for call in context.get("toolCalls", []):
        arguments = call.get("arguments") or {}
        result = await session.call(call["name"], arguments)
        if result.is_error and result.text.startswith("Invalid arguments"):
            # A null where the tool's own schema has none: a policy that was told so leaves it out.
            given = {name: value for name, value in arguments.items() if value is not None}
            await session.call(call["name"], given)


async def echo_schema(session: Session, _: Context) -> None:
    schema = session.tools["json_schema_2020_12_tool"].input_schema
    await session.call("json_schema_echo", {"schema": schema})


async def postponed(session: Session, _: Context) -> None:
    for name in ("echo_state", "unrelated", "no_state", "no_result_type"):
        await session.call(f"test_mrtr_{name}", {})


async def nothing(session: Session, _: Context) -> None:
    pass


def only(tool: str) -> Play:
    async def play(session: Session, _: Context) -> None:
        await session.call(tool, {})

    return play


SCENARIOS: dict[str, Play] = {
    "initialize": nothing,
    "json-schema-ref-no-deref": nothing,
    "json-schema-2020-12-preservation": echo_schema,
    "tools_call": add_numbers,
    "request-metadata": add_numbers,
    "http-standard-headers": add_numbers,
    "sse-retry": only("test_reconnection"),
    "elicitation-sep1034-client-defaults": only("test_client_elicitation_defaults"),
    "sep-2322-client-request-state": postponed,
    "http-invalid-tool-headers": every_tool,
    "http-custom-headers": given_calls,
}


class Tokens:
    """What an OAuth client keeps; forgotten when the program ends."""

    def __init__(self, client: OAuthClientInformationFull | None) -> None:
        self._client, self._tokens = client, None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


class Browser:
    """A user who is asked to log in, and does."""

    def __init__(self) -> None:
        self._answer: dict[str, list[str]] = {}

    async def open(self, url: str) -> None:
        async with httpx2.AsyncClient() as client:
            response = await client.get(url, follow_redirects=False)
        self._answer = parse_qs(urlparse(response.headers["location"]).query)

    async def answer(self) -> AuthorizationCodeResult:
        given = {name: values[0] for name, values in self._answer.items()}
        return AuthorizationCodeResult(code=given["code"], state=given.get("state"), iss=given.get("iss"))


@asynccontextmanager
async def logged_in(url: str, context: Context) -> AsyncIterator[Any]:
    """mcp's transport with mcp's authorization code flow: an embedder's business, through the seam made for it."""
    known: OAuthClientInformationFull | None = None
    if "client_id" in context:
        secret = context.get("client_secret")
        known = OAuthClientInformationFull(
            client_id=context["client_id"],
            client_secret=secret,
            redirect_uris=[REDIRECT],  # type: ignore[list-item]
            token_endpoint_auth_method="client_secret_basic" if secret else "none",
        )
    browser = Browser()
    metadata = OAuthClientMetadata(
        client_name="conformance-client",
        redirect_uris=[REDIRECT],  # type: ignore[list-item]
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
    )
    auth = OAuthClientProvider(
        server_url=url,
        client_metadata=metadata,
        storage=Tokens(known),
        redirect_handler=browser.open,
        callback_handler=browser.answer,
        client_metadata_url="https://conformance-test.local/client-metadata.json",
    )
    async with (
        httpx2.AsyncClient(auth=auth, timeout=30) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


async def play(scenario: str, url: str, context: Context) -> None:
    """Connect to the suite's server at `url`, do what `scenario` is about, and leave."""
    config: dict[str, Any] = {
        "servers": {
            "suite": {"url": url, "required": True},
            "user": {"factory": "unused:unused", "required": True},
        },
        "elicitation": {"server": "user"},
    }
    own = first_tool if scenario.startswith("auth/") else SCENARIOS[scenario]
    login: Callable[[], Any] | None = None
    if scenario.startswith("auth/"):
        login = partial(logged_in, url, context)

    def connect(_: Any, server: str) -> Any:
        if server == "user":
            return user()
        return login() if login is not None else None

    # Servers that misbehave on purpose are part of the suite.
    with suppress(GatewayError):
        async with (
            Gateway(GatewayConfig.model_validate(config), connect=connect) as gateway,
            gateway.lease(trajectory="conformance", task=None, seed=1) as session,
        ):
            await own(session, context)
