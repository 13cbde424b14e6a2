"""Answer servers' sampling requests with an OpenAI-compatible chat endpoint, as far as one is configured."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, cast

import anyio
import httpx2

from gateway.config.calls import SamplingConfig
from gateway.config.models import GatewayConfig
from gateway.connection.in_flight import Answerer, Question
from gateway.control_text import break_control_text
from gateway.errors import ConfigError, RequestRefused
from gateway.server_events import RequestKind
from gateway.transport.http_client import Address, AddressedTransport, certificates
from gateway.types import Role, ToolDefinition

_MAX_ANSWER_BYTES = 8 << 20
_AT_ONCE = 64
"""Completions requested at a time."""
_STOPS = {"stop": "endTurn", "length": "maxTokens"}


_BUSY = frozenset({429, 502, 503, 504})


class Busy(ValueError):
    """The endpoint has no capacity now."""


def _may_resend(error: RequestRefused) -> RequestRefused:
    error.may_resend = True
    return error


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
        try:
            body = chat_request(params, self._config)
            reply = await self._post(body)
            return result(reply, self._config)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            problem = f"nothing answers at {self._host} ({type(error).__name__}): start the endpoint, or correct url"
            raise _may_resend(RequestRefused(problem)) from error
        except Busy as error:
            raise _may_resend(RequestRefused(str(error))) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise RequestRefused(f"{type(error).__name__} at {self._host}") from error
        except ValueError as error:
            raise RequestRefused(str(error)) from error
        except RecursionError as error:
            raise RequestRefused("the endpoint's answer is nested too deeply") from error

    async def _post(self, body: Mapping[str, Any]) -> Any:
        config = self._config
        headers = {"authorization": f"Bearer {config.api_key.get_secret_value()}"} if config.api_key else {}
        address = Address(f"{config.url}/chat/completions")
        # The URL's password and query are added below httpx2's log lines.
        transport = AddressedTransport(httpx2.AsyncHTTPTransport(verify=certificates()), address)
        async with (
            # For each read; the caller bounds the whole answer.
            httpx2.AsyncClient(transport=transport, headers=headers, timeout=config.timeout_s) as client,
            client.stream("POST", address.url, json=body) as response,
        ):
            data = bytearray()
            async for chunk in response.aiter_bytes():
                data += chunk
                if len(data) > _MAX_ANSWER_BYTES:
                    raise ValueError(f"the endpoint answered with more than {_MAX_ANSWER_BYTES} bytes")
        if response.status_code in _BUSY:
            raise Busy(f"the endpoint answered HTTP {response.status_code}")
        if response.status_code != 200:
            raise ValueError(f"the endpoint answered HTTP {response.status_code}")
        return json.loads(data)


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
    return body


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message["content"]
    blocks = cast("list[Mapping[str, Any]]", content if isinstance(content, list) else [content])
    parts = [_part(block) for block in blocks]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return {"role": message["role"], "content": parts[0]["text"]}
    return {"role": message["role"], "content": parts}


def _part(block: Mapping[str, Any]) -> dict[str, Any]:
    match block["type"]:
        case "text":
            # A server may quote what the policy wrote.
            return {"type": "text", "text": break_control_text(block["text"])}
        case "image":
            return {"type": "image_url", "image_url": {"url": f"data:{block['mimeType']};base64,{block['data']}"}}
        case "audio":
            form = str(block["mimeType"]).rpartition("/")[2].removeprefix("x-")
            return {"type": "input_audio", "input_audio": {"data": block["data"], "format": form}}
        case kind:
            raise ValueError(f"a request with {kind} content is not supported")


def result(reply: Any, config: SamplingConfig) -> dict[str, Any]:
    """A chat completion as a `CreateMessageResult`. Raises ValueError where it is none."""
    try:
        choice = reply["choices"][0]
        text = choice["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise ValueError("the endpoint's answer is no chat completion") from None
    if not isinstance(text, str):
        raise ValueError("the endpoint's answer has no text")
    stop = choice.get("finish_reason")
    # A list or an object has no hash, and would fail below as a defect.
    if stop is not None and not isinstance(stop, str):
        raise ValueError("the endpoint's finish_reason is no text")
    return {
        "role": "assistant",
        "content": {"type": "text", "text": text},
        "model": str(reply.get("model") or config.model),
        "stopReason": _STOPS.get(stop, stop) if stop else "endTurn",
    }


def sampling_answerer(config: GatewayConfig) -> Answerer | None:
    """The configured model; None where there is none."""
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
