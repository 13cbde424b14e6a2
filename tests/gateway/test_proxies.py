"""MCP over HTTP by way of the proxy that the environment names, and what a proxy that refuses means for a call."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from breaking import Breaking, BreakingHttp, BreakingSse, breaking
from proxy import Proxy, proxying, with_tls

from mcp_rollout import Gateway, GatewayConfig
from mcp_rollout.gateway.errors import DeliveryUnknown, ServerUnavailable
from mcp_rollout.gateway.transport.http_address import certificates, tls
from mcp_rollout.mcp_wire.chat_api import open_client
from mcp_rollout.mcp_wire.proxies import proxy_of

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@asynccontextmanager
async def proxied(
    kind: type[Breaking], monkeypatch: pytest.MonkeyPatch, credentials: str = ""
) -> AsyncIterator[tuple[Breaking, Proxy, GatewayConfig]]:
    """A server that is reached as mcp.test, by way of the proxy alone."""
    async with breaking(kind, "proxied", unread=0.0) as server:
        entry = dict(server.entry)
        address = urlsplit(entry["url"])
        entry["url"] = f"http://mcp.test:{address.port}{address.path}"
        async with proxying({"mcp.test": address.port or 0}, credentials) as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.address)
            given = {**entry, "call_timeout_s": 20, "required": True}
            yield server, proxy, GatewayConfig.model_validate({"servers": {"world": given}})


@pytest.mark.parametrize("kind", [BreakingHttp, BreakingSse])
@pytest.mark.parametrize("credentials", ["", "me:pass%20word"])
async def test_calls_sessions_and_streams_go_through_the_proxy(
    monkeypatch: pytest.MonkeyPatch, kind: type[Breaking], credentials: str
) -> None:
    async with proxied(kind, monkeypatch, credentials) as (server, proxy, config):
        proxy.credentials = credentials.replace("%20", " ")
        async with Gateway(config) as gateway, gateway.lease(trajectory="t", task=None, seed=1) as session:
            results = [await session.call("put", {"id": f"call-{number}"}) for number in range(3)]
        assert [result.text for result in results] == ["call-0", "call-1", "call-2"]
        assert set(server.ran.values()) == {1} and len(proxy.asked) >= 5
        assert all(line.split()[1].startswith("http://mcp.test:") for line in proxy.asked)


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of certificates that are trusted once the test has written some."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    certificates.cache_clear()
    tls.cache_clear()
    yield tmp_path / "authority.pem"
    certificates.cache_clear()
    tls.cache_clear()


async def test_https_goes_through_a_tunnel_and_the_proxy_sees_none_of_it(
    monkeypatch: pytest.MonkeyPatch, trusted: Path
) -> None:
    async with (
        breaking(BreakingHttp, "tunnel", unread=0.0) as server,
        with_tls("mcp.test", urlsplit(server.entry["url"]).port or 0, trusted) as port,
        proxying({"mcp.test": port}, "me:secret-word") as proxy,
    ):
        monkeypatch.setenv("https_proxy", proxy.address)
        entry = {"url": "https://mcp.test/mcp", "required": True}
        async with Gateway(GatewayConfig.model_validate({"servers": {"world": entry}})) as gateway:
            async with gateway.lease(trajectory="t", task=None, seed=1) as session:
                assert (await session.call("put", {"id": "a"})).text == "a"
        assert set(proxy.asked) == {"CONNECT mcp.test:443"}


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    ("status", "words"), [(407, "HTTP 407 Refused"), (502, "HTTP 502 Refused"), (0, "Connect call")]
)
async def test_a_proxy_that_refuses_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, scheme: str, status: int, words: str
) -> None:
    async with proxying({}, "me:secret-word") as proxy:
        proxy.refuses = status
        address = proxy.address if status else "http://me:secret-word@127.0.0.1:1"
        monkeypatch.setenv("ALL_PROXY", address)
        entry = {"url": f"{scheme}://mcp.test/mcp", "required": True}
        with pytest.raises(ServerUnavailable) as caught:
            await Gateway(GatewayConfig.model_validate({"servers": {"world": entry}})).__aenter__()
    assert words in str(caught.value) and f"the proxy http://127.0.0.1:{urlsplit(address).port}" in str(caught.value)
    assert "secret-word" not in repr(caught.value)


@pytest.mark.parametrize(
    ("status", "error"), [(407, ServerUnavailable), (502, DeliveryUnknown), (503, DeliveryUnknown)]
)
async def test_only_a_call_that_the_proxy_surely_kept_counts_as_not_sent(
    monkeypatch: pytest.MonkeyPatch, status: int, error: type[Exception]
) -> None:
    async with proxied(BreakingHttp, monkeypatch) as (server, proxy, config):
        async with Gateway(config) as gateway, gateway.lease(trajectory="t", task=None, seed=1) as session:
            proxy.refuses = status
            with pytest.raises(error, match=f"HTTP {status} Refused by way of the proxy http://127.0.0.1:{proxy.port}"):
                await session.call("put", {"id": "a"})
            proxy.refuses = 0
        assert not server.ran


async def test_a_refused_tunnel_is_a_call_that_was_not_sent(monkeypatch: pytest.MonkeyPatch, trusted: Path) -> None:
    async with (
        breaking(BreakingHttp, "tunnel", unread=0.0) as server,
        with_tls("mcp.test", urlsplit(server.entry["url"]).port or 0, trusted) as port,
        proxying({"mcp.test": port}) as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", proxy.address)
        entry = {"url": "https://mcp.test/mcp", "required": True, "scope": "session"}
        async with Gateway(GatewayConfig.model_validate({"servers": {"world": entry}})) as gateway:
            async with gateway.lease(trajectory="t", task=None, seed=1) as session:
                gateway._openings.http.close()  # its connections are idle
                proxy.refuses = 502
                with pytest.raises(ServerUnavailable, match="CONNECT was answered HTTP 502"):
                    await session.call("put", {"id": "a"})
                proxy.refuses = 0
                assert (await session.call("put", {"id": "b"})).text == "b"
        assert server.ran == {"b": 1}


EXCEPTIONS = (
    *("", "*", "mcp.test", "MCP.test", "test", ".test", "*.test", ".mcp.test", "*.mcp.test", "cp.test", "other.test"),
    *("mcp.test:8080", "mcp.test:80", "a, mcp.test ,b"),
    *("10.0.0.1", "10.0.0.0/8", "10.0.0.2", "10.0.0.0/31", "10.0.0.1:8080", "0.0.0.0/0", "10.0.0.0/99", "/8"),
    *("fd00::1", "[fd00::1]", "fd00::/8", "[fd00::]/8", "[fd00::1]:8080", "::/0", "localhost", "[", ":"),
)
URLS = (
    "http://mcp.test/",
    "http://a.mcp.test:8080/",
    "https://mcp.test/x",
    "http://10.0.0.1:8080/",
    "http://[fd00::1]/",
)


@pytest.mark.parametrize("exceptions", EXCEPTIONS)
def test_the_proxy_is_the_one_that_httpx2_takes(monkeypatch: pytest.MonkeyPatch, exceptions: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", "upper:1")
    monkeypatch.setenv("all_proxy", "http://all:2")
    monkeypatch.setenv("NO_PROXY", exceptions)
    client = httpx2.AsyncClient(verify=False)
    for url in URLS:
        taken = client._transport_for_url(httpx2.URL(url))
        pool = getattr(taken, "_pool", None)
        origin = getattr(pool, "_proxy_url", None)
        theirs = f"http://{origin.host.decode()}:{origin.port}" if origin is not None else ""
        if exceptions == "mcp.test:80" and url == "http://mcp.test/":
            theirs = ""  # a default port is a port, which httpx2 does not see
        assert proxy_of(url) == theirs, url


def test_a_proxy_on_another_machine_is_not_asked_for_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.test:3128")
    assert [proxy_of(f"http://{host}:9000/mcp") for host in ("localhost", "127.0.0.2", "[::1]")] == ["", "", ""]
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:3128")
    assert proxy_of("http://localhost:9000/mcp") == "http://127.0.0.1:3128"


async def test_chat_apis_use_the_same_proxy_also_with_a_key_in_their_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async with breaking(BreakingHttp, "chat", unread=0.0) as server:
        port = urlsplit(server.entry["url"]).port or 0
        async with proxying({"chat.test": port}) as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.address)
            for query in ("", "?key=1"):
                url = f"http://chat.test:{port}/v1{query}"
                async with open_client(url, tls=ssl.create_default_context(), timeout=10) as client:
                    assert (await client.get("/models")).status_code == 405  # the server's
        assert proxy.asked == [f"GET http://chat.test:{port}/v1/models{query}" for query in ("", "?key=1")]


async def test_a_variable_that_names_no_http_proxy_is_said_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("socks5://me:secret-word@proxy.test:1080", "http://me:secret-word@proxy.test:port"):
        monkeypatch.setenv("ALL_PROXY", address)
        entry = {"url": "http://mcp.test/mcp", "required": True}
        with pytest.raises(ServerUnavailable, match="ALL_PROXY does not name an HTTP proxy") as caught:
            await Gateway(GatewayConfig.model_validate({"servers": {"world": entry}})).__aenter__()
        assert "secret-word" not in repr(caught.value)
