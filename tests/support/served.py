"""A gateway that is served over loopback, and gateways and raw clients of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from mcp_rollout import Gateway, GatewayConfig
from mcp_rollout.gateway.remote.hosts import HostConfig, HostList
from mcp_rollout.gateway.serve.app import Serving, serving
from mcp_rollout.gateway.serve.config import ServeConfig

TOKEN = "a token of the first bearer"
OTHER_TOKEN = "a token of another bearer"


@asynccontextmanager
async def served(config: GatewayConfig, **options: Any) -> AsyncIterator[Serving]:
    """The servers of `config` behind an address of this machine."""
    async with Gateway(config) as gateway, serving(gateway, ServeConfig(**options)) as running:
        yield running


def at(url: str, token: str | None = None, **options: Any) -> HostList:
    return HostList([HostConfig.model_validate({"url": url, "token": token, **options})])


@asynccontextmanager
async def remote(config: GatewayConfig, **options: Any) -> AsyncIterator[tuple[Gateway, Serving]]:
    """A gateway without servers of its own, beside the one that has them."""
    async with served(config, **options) as running:
        tokens = options.get("tokens")
        async with Gateway(config, hosts=at(running.url, tokens[0] if tokens else None)) as gateway:
            yield gateway, running


class RawClient:
    """Sends requests of the lease extension as any other trainer's client could."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url, self.headers = url, {"authorization": f"Bearer {token}"} if token else {}

    async def post(self, body: Any, **headers: str) -> httpx2.Response:
        async with httpx2.AsyncClient() as client:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            given = {"content-type": "application/json", **self.headers, **headers}
            return await client.post(self.url, content=content, headers=given)

    async def ask(self, method: str, params: Mapping[str, Any] = {}, **meta: Any) -> dict[str, Any]:
        """The JSON-RPC response."""
        tagged = {f"mcp-rollout/{name}": value for name, value in meta.items()}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": tagged}}
        return (await self.post(message)).json()

    async def open(self, trajectory: str, **more: Any) -> str:
        """The handle of a new lease, once it is granted."""
        params = {"key": f"open {trajectory}", "trajectory": trajectory, "seed": 1, **more}
        while True:
            found = (await self.ask("mcp-rollout/leases/open", params))["result"]
            if found["granted"]:
                return found["lease"]


@asynccontextmanager
async def client(url: str, token: str, mode: str) -> AsyncIterator[Client]:
    """The SDK's client of a bearer."""
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode, cache=None) as found:
            yield found


async def until_free(running: Serving) -> None:
    """Return when the server has no lease any more."""
    with anyio.fail_after(60):
        while running.leases:
            await anyio.lowlevel.checkpoint()
