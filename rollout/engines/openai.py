"""OpenAI-compatible servers that take and return token ids: `/v1/completions` as vLLM has it.

`prompt` is a list of ids and `return_token_ids` adds `token_ids` to each piece of the stream, `prompt_token_ids` to
the first. A server without them is refused at the start (`check_token_ids`): its text is never re-tokenised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from pydantic import BaseModel

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.engines.http import EngineHttp, HttpPolicy, Lost
from mcp_rollout.rollout.engines.sampling import SamplingParameters, TokenId, with_logprobs
from mcp_rollout.rollout.engines.timeouts import result_or_partial
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.types import Completion, FinishReason

PATH = "/v1/completions"


class _Logprobs(BaseModel):
    token_logprobs: list[float | None] = []


class _Choice(BaseModel):
    text: str = ""
    token_ids: list[TokenId] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Error(BaseModel):
    message: str = ""


class _Event(BaseModel):
    choices: list[_Choice] = []
    error: _Error | None = None


@dataclass(kw_only=True, slots=True)
class Sampled:
    """The part of a completion that has arrived."""

    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float | None] = field(default_factory=list[float | None])
    finish_reason: str | None = None
    """None until the last piece, and after an abort."""


class OpenAIPolicy(HttpPolicy):
    """One trajectory's access to an OpenAI-compatible server; closing the stream aborts a generation there."""

    def __init__(
        self,
        http: EngineHttp,
        model: str,
        parameters: SamplingParameters,
        origin: Origin,
        *,
        stop_token_ids: Sequence[int],
    ) -> None:
        super().__init__(http, parameters, origin, stop_token_ids=stop_token_ids)
        self._model = model

    async def _generate_once(self, ids: list[int], *, max_tokens: int, seed: int) -> Completion:
        body = request(self._model, ids, self._parameters, max_tokens=max_tokens, seed=seed, stop_token_ids=self._stops)
        # `sampled` outlives a read that is cancelled: what has arrived is the partial completion.
        sampled, stream = Sampled(), anyio.CancelScope()

        async def read() -> Sampled:
            with stream:
                await read_stream(self._http, body, sampled)
            return sampled

        async def abort() -> None:
            stream.cancel()

        try:
            await result_or_partial(read, abort, self._http.timeouts)
        except Lost as error:
            # No `Lost`, which is retried: to discard what was sampled and sample again would bias what the policy
            # generates.
            if sampled.ids:
                raise EngineError(f"the connection broke after {len(sampled.ids)} tokens: {error}") from error
            raise
        reasons = {"length": FinishReason.LENGTH, "stop": FinishReason.STOP}
        reason = reasons.get(sampled.finish_reason or "", FinishReason.ABORT)
        logprobs = (sampled.logprobs or None) if self._parameters.has_one_logprob else None
        return with_logprobs(Completion(ids=sampled.ids, finish_reason=reason), logprobs)


def request(
    model: str,
    ids: list[int],
    parameters: SamplingParameters,
    *,
    max_tokens: int,
    seed: int,
    stop_token_ids: Sequence[int] = (),
) -> dict[str, Any]:
    """The body for `/v1/completions`; it overrides all that a model's own generation config would change."""
    return {
        "model": model,
        "prompt": ids,
        "max_tokens": max_tokens,
        "temperature": parameters.temperature,
        "top_p": parameters.top_p if parameters.is_truncated else 1.0,
        "top_k": parameters.top_k if parameters.is_truncated and parameters.top_k > 0 else -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": seed,
        "stop_token_ids": list(stop_token_ids),
        # 0 is the sampled token alone; nothing would ask for no logprobs at all.
        "logprobs": 0,
        "return_token_ids": True,
        # So that an abort keeps what has arrived; of an answer in one piece it would lose everything.
        "stream": True,
    }


async def read_stream(http: EngineHttp, body: Mapping[str, Any], sampled: Sampled) -> None:
    """Send a request and add the pieces of its answer to `sampled` as they arrive.

    Raises:
        Lost: the connection broke, or ended before the completion did.
        EngineError: the server refuses, changed the prompt, or leaves out token ids.
    """
    where = f"{http.url}{PATH}"
    async with http.events(_Event, PATH, body) as events:
        async for event in events:
            if event.error is not None:
                raise EngineError(f"{where}: {event.error.message}")
            for choice in event.choices:
                # A server that cuts or extends a prompt samples from another context than the one that is trained on.
                if choice.prompt_token_ids is not None and choice.prompt_token_ids != body["prompt"]:
                    raise EngineError(f"{where}: the server changed the prompt's token ids")
                if choice.token_ids is None and choice.text:
                    raise EngineError(f"{where}: the server gives no token ids")
                sampled.ids += choice.token_ids or []
                sampled.logprobs += choice.logprobs.token_logprobs if choice.logprobs else []
                sampled.finish_reason = choice.finish_reason or sampled.finish_reason
    if sampled.finish_reason is None:
        raise Lost(f"{where}: the stream ended before the completion did")


async def check_token_ids(http: EngineHttp, model: str, token: int) -> None:
    """Sample one token after `token`.

    Raises:
        ConfigError: the server does not give its id.
        Lost: the server is busy, or cannot be reached.
    """
    sampled = Sampled()
    try:
        await read_stream(http, request(model, [token], SamplingParameters(), max_tokens=1, seed=0), sampled)
        if not sampled.ids:
            raise EngineError("the server gives no token ids")
    except Lost:  # says nothing about token ids
        raise
    except EngineError as error:
        remedy = "serve the model with vLLM (return_token_ids) or SGLang, or give its directory to run it in process; "
        remedy += "--engine chat:URL evaluates a chat API"
        raise ConfigError(f"the server does not complete token ids: {error}", key="--engine", remedy=remedy) from error
