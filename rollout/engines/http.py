"""Access to an inference server over HTTP: requests, validated answers, and retries while nothing was sampled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import anyio
import httpx2
import structlog
from pydantic import BaseModel, TypeAdapter, ValidationError

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.transport.http_address import certificates
from mcp_rollout.mcp_wire import chat_api
from mcp_rollout.rollout.engines.sampling import SamplingParameters
from mcp_rollout.rollout.engines.timeouts import Timeouts
from mcp_rollout.rollout.environment.task import Origin, TurnSeeds
from mcp_rollout.rollout.errors import ContextExceeded, EngineError
from mcp_rollout.rollout.types import Completion

log = structlog.get_logger(__name__)

_MOST_BYTES = 256 << 20
"""Of an answer: with a record for each of a long completion's tokens."""
Model = TypeVar("Model", bound=BaseModel)
Result = TypeVar("Result")
_OBJECT = TypeAdapter(dict[str, Any])


class Lost(EngineError):
    """The server could not be reached, is busy, or broke the connection off; a retry may help."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """The pause that the server asks for, 0 where it asks for none."""


class EngineHttp:
    """The connections to one server, shared by all trajectories of a run."""

    def __init__(
        self, url: str, timeouts: Timeouts, *, api_key: str | None = None, max_requests: int | None = None
    ) -> None:
        """Raises ConfigError: `url` is not an address.

        Args:
            api_key: sent as a bearer token.
            max_requests: generations after which no more are asked for, retries included; None bounds nothing.
        """
        self.timeouts, self._retries = timeouts, 0
        self._requests, self._max_requests = 0, max_requests
        # `result_or_partial` bounds a whole generation; the run's --concurrency bounds how many run at once.
        timeout = httpx2.Timeout(None, connect=timeouts.connect_timeout_s)
        # The client's own bound of 100 connections would make generations queue here, where their time runs already.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        try:
            self._client = chat_api.open_client(
                url, tls=certificates(), timeout=timeout, api_key=api_key, limits=limits
            )
        except (httpx2.InvalidURL, ValueError) as error:
            problem, remedy = f"{url!r} is not an address: {error}", "write http://HOST:PORT"
            raise ConfigError(problem, key="--engine", remedy=remedy) from error
        self.url = str(self._client.base_url).rstrip("/")

    async def aclose(self) -> None:
        if self._retries > 1:
            log.warning("engine.retries", url=self.url, count=self._retries)
        await self._client.aclose()

    async def retried(self, send: Callable[[], Awaitable[Result]]) -> Result:
        """Await `send` again after each `Lost`, after a pause, up to `timeouts.attempts` times in all.

        The first retry of a run is logged; `aclose` logs their number.
        """
        attempt = 1
        while True:
            try:
                return await send()
            except Lost as error:
                if attempt >= self.timeouts.attempts:
                    raise
                self._retries += 1
                if self._retries == 1:
                    log.warning("engine.retry", url=self.url, error=str(error), further="counted at the end")
                asked = min(error.retry_after_s, self.timeouts.retry_after_most_s)
                await anyio.sleep(max(asked, self.timeouts.retry_pause_s * 2 ** (attempt - 1)))
                attempt += 1

    async def look_up(self, path: str) -> dict[str, Any] | None:
        """The JSON object at `path`; None where the server has none there.

        Raises:
            ConfigError: the server cannot be reached, or refuses the key.
        """
        try:
            with anyio.fail_after(self.timeouts.connect_timeout_s):
                response = await self._client.get(path)
        except (httpx2.TransportError, httpx2.InvalidURL, TimeoutError) as error:
            problem = f"nothing answers at {self.url} ({type(error).__name__})"
            raise ConfigError(problem, key="--engine", remedy="start the server, or correct the address") from error
        if response.status_code in (401, 403):
            problem = f"{self.url} refuses access (HTTP {response.status_code})"
            raise ConfigError(problem, key="--api-key-env", remedy="name the variable that holds the server's key")
        try:
            return _OBJECT.validate_json(response.content) if response.status_code == 200 else None
        # Whatever listens there may answer 200 with a web page: then it is not the server that is looked for.
        except ValidationError:
            return None

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Send one request, without retries, and return the answer's content.

        Raises:
            Lost: the connection broke, or the server is busy.
            EngineError: the server refuses, or no request is left.
        """
        self._count()
        with _engine_errors(self.url + path):
            return await chat_api.post(self._client, path, body, most_bytes=_MOST_BYTES)

    def _count(self) -> None:
        if self._requests == self._max_requests:
            raise EngineError(f"--max-requests {self._max_requests} are spent; more of them and --resume play the rest")
        self._requests += 1

    async def post_for(self, model: type[Model], path: str, body: Mapping[str, Any]) -> Model:
        """As `post`, with the answer validated. Raises EngineError also for an answer of another form."""
        content = await self.post(path, body)
        with _engine_errors(self.url + path):
            return chat_api.parsed(model, content)

    @asynccontextmanager
    async def events(
        self, model: type[Model], path: str, body: Mapping[str, Any]
    ) -> AsyncGenerator[AsyncGenerator[Model]]:
        """The server-sent events that answer one request, without retries; leaving the block closes the connection.

        Raises:
            Lost: the connection broke, or the server is busy.
            EngineError: the server refuses, or sends an event of another form, or no request is left.
        """
        self._count()
        # Around the `yield` as well: a connection that breaks while the caller reads is lost in the same way.
        with _engine_errors(self.url + path), chat_api.transport_errors():
            async with self._client.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    chat_api.check_status(response, await chat_api.read(response, chat_api.MOST_BYTES))
                yield _events(model, response)


class HttpPolicy(ABC):
    """One trajectory's access to an inference server.

    A generation that is cancelled is aborted on the server and returns its partial tokens; see
    `timeouts.result_or_partial` for the cancellation itself.
    """

    def __init__(
        self,
        http: EngineHttp,
        parameters: SamplingParameters,
        origin: Origin,
        *,
        stop_token_ids: Sequence[int],
    ) -> None:
        self._http, self._parameters = http, parameters
        self._seeds, self._stops = TurnSeeds(origin, base=parameters.seed), list(stop_token_ids)

    @abstractmethod
    async def _generate_once(self, ids: list[int], *, max_tokens: int, seed: int) -> Completion:
        """One attempt. Raises `Lost` only where no token was sampled."""

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        # One seed for all attempts: a retry follows only where nothing was sampled with it.
        seed = self._seeds.next(turn)
        send = partial(self._generate_once, ids, max_tokens=max_tokens, seed=seed)
        return replace(await self._http.retried(send), seeds=(seed,))


async def _events(model: type[Model], response: httpx2.Response) -> AsyncGenerator[Model]:
    async for line in _lines(response):
        if not line.startswith(b"data:"):
            continue
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        yield chat_api.parsed(model, data)


async def _lines(response: httpx2.Response) -> AsyncGenerator[bytes]:
    """The lines of a stream of events; the last one may have no end."""
    # Not `aiter_lines`: it ends a line wherever `str.splitlines` does, at U+2028 or U+0085 too, which vLLM writes into
    # its JSON as they are. JSON escapes carriage returns and newlines, so that these are ends of lines only.
    begun = b""
    async for piece in response.aiter_bytes():
        *lines, begun = (begun + piece).split(b"\n")
        for line in lines:
            yield line
    yield begun


@contextmanager
def _engine_errors(where: str) -> Generator[None]:
    """An ApiError of the block as an engine's error, with all that is known: it is the operator who reads it."""
    try:
        yield
    except chat_api.ApiError as error:
        problem = f"{where}: {error}{': ' if error.said else ''}{error.said}"
        if isinstance(error, chat_api.ApiLost):
            raise Lost(problem, retry_after_s=error.retry_after_s) from error
        raise (ContextExceeded if isinstance(error, chat_api.ApiTooLong) else EngineError)(problem) from error
