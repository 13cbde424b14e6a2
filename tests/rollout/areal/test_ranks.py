"""With one process per rank, what the environment lacks is found before AReaL loads a model."""

from __future__ import annotations

import asyncio

import pytest

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.areal.ranks import RANKS, SERVERS, check_ranks

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RANKS:
        monkeypatch.setenv(name, "0")
    monkeypatch.delenv(SERVERS, raising=False)


async def test_a_server_that_accepts_connections_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        monkeypatch.setenv(SERVERS, f"{host}:{port}")
        await check_ranks(timeout_s=60)


async def test_all_missing_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK")
    with pytest.raises(ConfigError) as refused:
        await check_ranks(timeout_s=0)
    first, second = str(refused.value).splitlines()
    assert first.startswith("environment variable: RANK: is not set (") and "torchrun" in first
    assert second.startswith(f"environment variable: {SERVERS}: is not set (") and "HOST:PORT" in second


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("localhost", "'localhost' is not an address"),
        ("127.0.0.1:99999", "'127.0.0.1:99999' is not an address"),
        ("127.0.0.1:9", "no server accepts connections"),
    ],
)
async def test_an_address_without_a_server_is_named(monkeypatch: pytest.MonkeyPatch, address: str, said: str) -> None:
    monkeypatch.setenv(SERVERS, address)
    with pytest.raises(ConfigError, match=f"{SERVERS}: {said}"):
        await check_ranks(timeout_s=0)
