"""Answer servers' sampling requests with an OpenAI-compatible chat endpoint, as far as one is configured."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

import anyio
import httpx2

from mcp_rollout.gateway.config.calls import SamplingConfig
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.connection.in_flight import Answerer, Question
from mcp_rollout.gateway.errors import ConfigError, RequestRefused
from mcp_rollout.gateway.server_events import RequestKind
from mcp_rollout.gateway.transport.http_address import certificates
from mcp_rollout.gateway.types import Role, ToolDefinition
from mcp_rollout.mcp_wire import chat_api
from mcp_rollout.mcp_wire.control_text import break_control_text

_AT_ONCE = 64
"""Completions requested at a time."""
_STOPS = {"stop": "endTurn", "length": "maxTokens"}


class Sampler:
    """Answers `sampling/createMessage` with the configured model."""

    def __init__(self, config: SamplingConfig) -> None:
        self._config = config
        # The rest of the url may hold a password.
        self._host = config.url.split("://", 1)[1].split("/", 1)[0].rpartition("@")[2]

    async def answer(self, question: Question) -> dict[str, Any]:
        """As `complete`, for a server's request."""
        return await self.complete(question.params)

    async def complete(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """A `CreateMessageResult` for the parameters of a `sampling/createMessage`.

        Raises:
            RequestRefused: the endpoint cannot be reached, says no or answers off its protocol; or the request has
                content that chat endpoints do not take. For whom, and in which call, its caller knows. It may be sent
                again (`may_resend`) where the endpoint was not reached, or was busy.
        """
        config = self._config
        key = config.api_key.get_secret_value() if config.api_key else None
        try:
            body = chat_request(params, config)
            # The timeout is for each read; the caller bounds the whole answer.
            async with chat_api.open_client(
                config.url, tls=certificates(), timeout=config.timeout_s, api_key=key
            ) as client:
                return result(await chat_api.complete(client, body), config)
        except chat_api.ApiError as error:
            refused = RequestRefused(f"{self._host}: {error}")
            refused.said = error.said
            refused.may_resend = isinstance(error, chat_api.ApiLost) and not error.may_have_run
            raise refused from error
        except (httpx2.InvalidURL, ValueError) as error:
            raise RequestRefused(str(error)) from error


def chat_request(params: Mapping[str, Any], config: SamplingConfig) -> dict[str, Any]:
    """The body for `/chat/completions`. Raises ValueError for content that it has no place for."""
    if params.get("tools"):
        raise ValueError("a request with tools is not supported")
    messages: list[dict[str, Any]] = []
    if system := params.get("systemPrompt"):
        messages.append({"role": "system", "content": break_control_text(system)})
    messages += [_message(message) for message in params["messages"]]
    body: dict[str, Any] = {
        "model": config.model,
        "messages": messages,
        "max_tokens": min(int(params["maxTokens"]), config.max_tokens),
    }
    if params.get("temperature") is not None:
        body["temperature"] = params["temperature"]
    if params.get("stopSequences"):
        body["stop"] = params["stopSequences"]
    return chat_api.with_options(body, config.body)


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message["content"]
    blocks = cast("list[Mapping[str, Any]]", content if isinstance(content, list) else [content])
    if other := [block["type"] for block in blocks if block["type"] != "text"]:
        raise ValueError(f"a request with {other[0]} content is not supported")
    # A server may quote what the policy wrote.
    parts = [{"type": "text", "text": break_control_text(block["text"])} for block in blocks]
    return {"role": message["role"], "content": parts[0]["text"] if len(parts) == 1 else parts}


def result(reply: chat_api.Completion, config: SamplingConfig) -> dict[str, Any]:
    """A chat completion as a `CreateMessageResult`. Raises ApiError where it has no text."""
    stop = reply.choices[0].finish_reason
    return {
        "role": "assistant",
        "content": {"type": "text", "text": reply.text},
        "model": reply.model or config.model,
        "stopReason": _STOPS.get(stop, stop) if stop else "endTurn",
    }


def sampling_answerer(config: GatewayConfig) -> Answerer | None:
    """The configured model; None if there is none."""
    if config.sampling is None:
        return None
    sampler = Sampler(config.sampling)
    return Answerer(answer=sampler.answer, timeout_s=config.sampling.timeout_s, queue=anyio.CapacityLimiter(_AT_ONCE))


def requests_answered(config: GatewayConfig) -> tuple[frozenset[RequestKind], float]:
    """The kinds of server requests that have an answerer, and how long the slowest of them may take."""
    bounds = {
        kind: section.timeout_s
        for kind, section in (
            (RequestKind.ELICITATION, config.elicitation),
            (RequestKind.SAMPLING, config.sampling),
        )
        if section is not None
    }
    return frozenset(bounds), max(bounds.values(), default=0.0)


def check_elicitation(config: GatewayConfig, chosen: Mapping[str, Collection[ToolDefinition]]) -> None:
    """Raise `ConfigError` where the server that is to answer elicitation has no tool for it."""
    if config.elicitation is None or (server := config.elicitation.server) not in chosen:
        return
    if not any(tool.role is Role.ELICIT for tool in chosen[server]):
        raise ConfigError(
            f"{server!r} has no tool with the role elicit",
            key="elicitation.server",
            remedy="mark one in its _meta, or by roles: {elicit: TOOL}",
        )
