"""Requests to an inference server: bounded, repeated where nothing was sampled yet, errors in this program's words."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import httpx2
import structlog

from gateway.errors import ConfigError
from gateway.transport.http_client import certificates
from rollout.engines.parameters import Waits
from rollout.errors import EngineError

log = structlog.get_logger(__name__)

BUSY = (429, 502, 503, 504)
"""Answers that ask for patience: nothing was sampled."""

Json = dict[str, Any]


class Lost(EngineError):
    """The server could not be reached, is busy, or broke the connection off; asking again may help."""


class EngineHttp:
    """One server's connections, shared by all trajectories of a run."""

    def __init__(self, url: str, waits: Waits, *, api_key: str | None = None) -> None:
        """Raises ConfigError: `url` is none."""
        self.url, self.waits = url, waits
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # Generations are bounded as a whole; how many run at once is the run's own --concurrency.
        timeout = httpx2.Timeout(None, connect=waits.connect_timeout_s)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        try:
            self._client = httpx2.AsyncClient(
                base_url=url, headers=headers, timeout=timeout, limits=limits, verify=certificates()
            )
        except (httpx2.InvalidURL, ValueError) as error:
            raise ConfigError(f"{url!r} is no address: {error}", key="--engine") from error

    async def aclose(self) -> None:
        await self._client.aclose()

    async def look_up(self, path: str) -> Json | None:
        """The JSON object at `path`; None where the server has no such page.

        Raises:
            ConfigError: nothing can be reached, or it refuses the key.
        """
        try:
            with anyio.fail_after(self.waits.connect_timeout_s):
                response = await self._client.get(path)
        except (httpx2.TransportError, httpx2.InvalidURL, TimeoutError) as error:
            problem = f"nothing answers at {self.url} ({type(error).__name__})"
            raise ConfigError(problem, key="--engine", remedy="start the server, or correct the address") from error
        if response.status_code in (401, 403):
            problem = f"{self.url} refuses access (HTTP {response.status_code})"
            raise ConfigError(problem, key="--api-key-env", remedy="name the variable that holds the server's key")
        return _object(response.content) if response.status_code == 200 else None

    async def post(self, path: str, body: Mapping[str, Any]) -> Json:
        """One attempt. The answer's JSON object.

        Raises:
            Lost: the connection broke, or the server is busy.
            EngineError: the server refuses, or does not answer with a JSON object.
        """
        try:
            response = await self._client.post(path, json=body)
        except httpx2.TransportError as error:
            raise Lost(f"{self.url}{path}: {type(error).__name__}: {error}") from error
        _check(response.status_code, response.content, f"{self.url}{path}")
        answer = _object(response.content)
        if answer is None:
            raise EngineError(f"{self.url}{path}: the answer is no JSON object")
        return answer

    async def tell(self, path: str, body: Mapping[str, Any]) -> None:
        """One attempt, whose answer says nothing. Raises as `post`."""
        try:
            response = await self._client.post(path, json=body)
        except httpx2.TransportError as error:
            raise Lost(f"{self.url}{path}: {type(error).__name__}: {error}") from error
        _check(response.status_code, response.content, f"{self.url}{path}")

    @asynccontextmanager
    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[AsyncGenerator[Json]]:
        """One attempt. The JSON objects of a server-sent event stream; leaving the block breaks it off.

        Raises:
            Lost: the connection broke, or the server is busy.
            EngineError: the server refuses, or sends what is no JSON object.
        """
        where = f"{self.url}{path}"
        try:
            async with self._client.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    _check(response.status_code, await response.aread(), where)
                yield _events(response, where)
        except httpx2.TransportError as error:
            raise Lost(f"{where}: {type(error).__name__}: {error}") from error

    async def pause(self, attempt: int, error: Lost) -> None:
        """Wait before the attempt after this one, counted from 1.

        Raises:
            Lost: `error`, where this was the last one.
        """
        if attempt >= self.waits.attempts:
            raise error
        log.warning("engine.again", url=self.url, attempt=attempt, error=str(error))
        await anyio.sleep(self.waits.retry_pause_s * 2 ** (attempt - 1))


async def _events(response: httpx2.Response, where: str) -> AsyncGenerator[Json]:
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        event = _object(data.encode())
        if event is None:
            raise EngineError(f"{where}: an event is no JSON object")
        yield event


def _check(status: int, content: bytes, where: str) -> None:
    if status == 200:
        return
    said = content[:500].decode(errors="replace")
    error = Lost if status in BUSY else EngineError
    raise error(f"{where}: HTTP {status}: {said}")


def _object(content: bytes) -> Json | None:
    try:
        value: object = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return cast("Json", value) if isinstance(value, dict) else None
