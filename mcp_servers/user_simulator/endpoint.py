"""Client of a model behind an OpenAI-compatible chat endpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import httpx2
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from mcp_servers.kit import ToolError

_MOST_BYTES = 4 << 20


class EndpointConfig(BaseModel):
    """Address of the model and sampling parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    """Base URL, as in `https://api.example.com/v1`; `/chat/completions` is appended."""
    model: str = Field(min_length=1)
    api_key: SecretStr | None = None
    temperature: float = Field(default=0.7, ge=0, le=2)
    max_tokens: int = Field(default=512, ge=1)
    timeout_s: float = Field(default=45, gt=0, allow_inf_nan=False)
    """For one response, without the wait for one of the `max_concurrent` slots."""
    max_concurrent: int = Field(default=256, ge=1)
    """Maximum number of requests at a time. With as many as there are conversations, none waits."""

    @field_validator("url")
    @classmethod
    def _names_a_host(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError("a url begins with http:// or https://")
        return value.rstrip("/")


class _Message(BaseModel):
    content: str


class _Choice(BaseModel):
    message: _Message


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)


class Endpoint:
    """Sends requests to the model, at most `max_concurrent` at a time. Shared by all conversations of a process."""

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._tls = httpx2.create_ssl_context()  # made once: it is most of the cost of a client
        self._slots = anyio.CapacityLimiter(config.max_concurrent)

    async def complete(self, messages: Sequence[Mapping[str, str]], *, seed: int) -> str:
        """Returns the model's next message.

        Raises:
            ToolError: The request failed, or the response is not a chat completion. The message never contains the key
                or the URL.
        """
        config = self._config
        body = {
            "model": config.model,
            "messages": list(messages),
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
            "seed": seed,
        }
        try:
            async with self._slots:
                with anyio.fail_after(config.timeout_s):  # of the request alone: others' requests do not use it up
                    data = await self._post(body)
        except TimeoutError as error:
            raise ToolError(f"the user's model did not answer within {config.timeout_s:g} s") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            # The class alone: the library's messages may quote the URL.
            raise ToolError(f"the user's model cannot be asked: {type(error).__name__}") from error
        try:
            return _Completion.model_validate(json.loads(data)).choices[0].message.content
        except (ValueError, RecursionError, ValidationError) as error:
            raise ToolError("the user's model answered with something that is no chat completion") from error

    async def _post(self, body: Mapping[str, Any]) -> bytes:
        config = self._config
        headers = {"authorization": f"Bearer {config.api_key.get_secret_value()}"} if config.api_key else {}
        async with (
            # Its timeout is for each read; a response that drips is cut by `fail_after`.
            httpx2.AsyncClient(verify=self._tls, headers=headers, timeout=config.timeout_s) as client,
            client.stream("POST", f"{config.url}/chat/completions", json=body) as response,
        ):
            if response.status_code != 200:
                raise ToolError(f"the user's model answered HTTP {response.status_code}")
            data = bytearray()
            async for chunk in response.aiter_bytes():
                data += chunk
                # Of the decoded body: a compressed one may be a thousandth of it.
                if len(data) > _MOST_BYTES:
                    raise ToolError(f"the user's model answered with more than {_MOST_BYTES} bytes")
        return bytes(data)
