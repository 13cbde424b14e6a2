"""Entries with the `url` of a served gateway: their worlds are leases there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from served import TOKEN, served, until_free

from mcp_rollout import Gateway, GatewayConfig
from mcp_rollout.gateway.errors import ConfigError, GatewayError, WorldLost
from mcp_rollout.gateway.types import Role

Entries = Callable[..., dict[str, Any]]
Config = Callable[..., GatewayConfig]
pytestmark = pytest.mark.anyio


async def test_an_entrys_worlds_are_leases_beside_servers_of_this_gateway(mini: Entries, config: Config) -> None:
    shop = mini("put", "get", "meta", "reset", "score", "release", scope="process")
    async with served(config(shop=shop), tokens=(TOKEN,)) as running:
        entry = {"url": running.url, "headers": {"authorization": f"Bearer {TOKEN}"}, "required": True}
        async with Gateway(config(far=entry, near=mini("pid"))) as gateway:
            assert {tool.name for tool in gateway.catalogue["far"]} >= {"put", "get", "reset", "score"}
            assert {tool.server for tool in gateway.catalogue["far"]} == {"far"}
            async with (
                gateway.lease(trajectory="one", task="t", seed=3) as one,
                gateway.lease(trajectory="two", task="t", seed=3) as two,
            ):
                assert running.leases == 2
                assert one.has(Role.SCORE, "far") and set(one.tools) == {"put", "get", "meta", "pid"}
                assert not (await one.call("put", {"text": "plum"})).is_error
                assert (await one.call("get", {})).text == "plum" != (await two.call("get", {})).text
                assert "one" in (await one.call("meta", {})).text
                assert (await one.call("pid", {})).text
        await until_free(running)


async def test_entries_of_one_address_are_one_lease(mini: Entries, config: Config) -> None:
    made = config(shop=mini("put", "get", scope="process"), user=mini("echo", scope="process"))
    async with served(made) as running:
        async with Gateway(config(shop={"url": running.url}, user={"url": running.url})) as gateway:
            async with gateway.lease(trajectory="a", task=None, seed=1) as session:
                assert running.leases == 1
                await session.call("put", {"text": "plum"})
                assert (await session.call("echo", {"text": "pear"})).text == "pear"


async def test_a_world_that_is_gone_is_lost(mini: Entries, config: Config) -> None:
    async with served(config(shop=mini("get", scope="process")), idle_s=30) as running:
        async with Gateway(config(shop={"url": running.url})) as gateway:
            async with gateway.lease(trajectory="a", task=None, seed=1) as session:
                await running.end_leases()
                with pytest.raises(WorldLost):
                    await session.call("get", {})


async def test_what_is_decided_there_is_refused_here(mini: Entries, config: Config) -> None:
    async with served(config(shop=mini("get"), user=mini("echo"))) as running:
        with pytest.raises(ConfigError, match="whose tools and roles its own file decides"):
            async with Gateway(config(shop={"url": running.url, "tools": ["get"], "required": True})):
                pass
        oauth = {"client_credentials": {"issuer": "http://127.0.0.1:9", "client_id": "us", "client_secret": "hush"}}
        urls = [f"{running.url}?key=hush", *(running.url.replace("//", f"//{user}:hush@") for user in ("us", ""))]
        for change in (*({"url": url} for url in urls), oauth):
            entry = {"url": running.url, "required": True, **change}
            with pytest.raises(ConfigError, match="to which only headers are sent") as caught:
                async with Gateway(config(shop=entry)):
                    pass
            assert "hush" not in str(caught.value)
        with pytest.raises(ConfigError, match="has no server 'other'"):
            async with Gateway(config(other={"url": running.url, "required": True})):
                pass
    async with served(config(shop=mini("get")), tokens=(TOKEN,)) as running:
        with pytest.raises(GatewayError):
            async with Gateway(config(shop={"url": running.url, "required": True})):
                pass
