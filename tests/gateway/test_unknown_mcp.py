"""With a release of mcp whose private names are not known, its public calls are used, and that is said once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from serving import serving
from structlog.testing import capture_logs

from mcp_rollout import ConfigError, Gateway, GatewayConfig
from mcp_rollout.gateway import sdk
from mcp_rollout.gateway.serve.client_sessions import ClientSessions
from mcp_rollout.gateway.serve.config import ServeConfig
from mcp_rollout.mcp_servers.kit import sdk as kit_sdk
from mcp_rollout.mcp_servers.kit.direct.calls import DirectCalls

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def unknown(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for each in (sdk, kit_sdk):
        monkeypatch.setattr(each, "is_known", False)
        monkeypatch.setattr(each, "INSTALLED", "2.9.0")
        each.warn_of_unknown.cache_clear()
    yield
    for each in (sdk, kit_sdk):
        each.warn_of_unknown.cache_clear()


@pytest.mark.parametrize("transport", ["stdio", "http", "http-handshake", "sse"])
async def test_calls_are_answered_over_every_transport_and_one_warning_names_the_cost(
    transport: str, mini: Callable[..., dict[str, Any]]
) -> None:
    server = MCPServer("world", log_level="ERROR")
    server.add_tool(lambda text: text, name="echo", description="Returns its text.")

    async def play(entries: dict[str, Any]) -> list[str]:
        async with Gateway(GatewayConfig.model_validate({"servers": entries})) as gateway:
            async with gateway.lease(trajectory="t", task=None, seed=1) as session:
                return [(await session.call(f"{name}__echo", {"text": name})).text for name in entries]

    with capture_logs() as logs:
        if transport == "stdio":
            texts = await play({"a": mini("echo"), "b": mini("echo")})
        else:
            async with serving(server, transport) as entry:
                texts = await play({"a": entry, "b": entry})
    assert texts == ["a", "b"]
    (warning,) = (each for each in logs if each["event"] == "mcp.unknown_version")
    assert (warning["installed"], warning["known"]) == ("2.9.0", "2.3.x")
    assert "CPU time" in warning["cost"]


async def test_the_kit_leaves_calls_to_the_sdk_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert [DirectCalls.of(MCPServer(name)) for name in "ab"] == [None, None]
    (said,) = (each.getMessage() for each in caplog.records if each.name == kit_sdk.__name__)
    assert said.startswith("mcp 2.9.0 is not known (2.3.x is)")


async def test_serving_is_refused_where_a_name_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    ClientSessions(Server("any"), ServeConfig())
    monkeypatch.setattr(sdk.SessionManager, "_NEEDED", ((Server.__init__, "_gone"),))
    with pytest.raises(ConfigError, match=r"mcp 2\.9\.0 has no _gone, without which MCP clients cannot be served"):
        ClientSessions(Server("any"), ServeConfig())
