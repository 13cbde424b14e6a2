"""Client of a model behind an OpenAI-compatible chat endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio
import httpx2
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from mcp_servers.kit import ToolError
from mcp_wire import chat_api


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
        key = config.api_key.get_secret_value() if config.api_key else None
        try:
            async with self._slots:
                # Of the request alone: others' requests do not use it up. The client's own timeout is for each read.
                with anyio.fail_after(config.timeout_s):
                    async with chat_api.open_client(
                        config.url, tls=self._tls, timeout=config.timeout_s, api_key=key
                    ) as client:
                        return (await chat_api.complete(client, body)).text
        except TimeoutError as error:
            raise ToolError(f"the user's model did not answer within {config.timeout_s:g} s") from error
        except chat_api.ApiError as error:
            raise ToolError(f"the user's model: {error}") from error
        except httpx2.InvalidURL as error:
            raise ToolError("the address of the user's model is not one") from error
