"""OpenAI-compatible servers that take and give token ids: `/v1/completions` as vLLM has it.

`prompt` is a list of ids and `return_token_ids` adds `token_ids` to each piece of the stream, `prompt_token_ids` to
the first. A server without them is refused at the start (`check_token_ids`): its text is never tokenised again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from pydantic import BaseModel, ValidationError

from gateway.errors import ConfigError
from rollout.engines.completions import TokenId, checked
from rollout.engines.http import EngineHttp, Lost
from rollout.engines.interruption import NoResult, result_or_rest
from rollout.engines.logprobs import GREEDY_TOP_P, LogprobSemantics
from rollout.engines.parameters import SamplingParameters
from rollout.environment.task import Origin, TurnSeeds
from rollout.errors import EngineError
from rollout.types import Completion, FinishReason

PATH = "/v1/completions"


class NoTokenIds(EngineError):
    """The server says what it sampled as text only."""


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
    """What has arrived of a completion."""

    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float | None] = field(default_factory=list[float | None])
    finish_reason: str | None = None
    """None while the stream goes on, and after it was broken off."""


class OpenAIPolicy:
    """One trajectory's access to an OpenAI-compatible server.

    A generation that is cancelled is broken off, which ends it on the server, and comes back with the
    tokens that had arrived; see `interruption.result_or_rest` for the cancellation itself.
    """

    def __init__(
        self,
        http: EngineHttp,
        model: str,
        parameters: SamplingParameters,
        origin: Origin,
        *,
        meaning: LogprobSemantics,
        stop_token_ids: Sequence[int],
    ) -> None:
        self._http, self._model, self._parameters, self._meaning = http, model, parameters, meaning
        self._seeds, self._stops = TurnSeeds(origin, base=parameters.seed), list(stop_token_ids)
        self._reading: anyio.CancelScope | None = None

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        seed = self._seeds.next(turn)
        body = request(self._model, ids, self._parameters, max_tokens=max_tokens, seed=seed, stop_token_ids=self._stops)
        attempt = 0
        while True:
            attempt += 1
            sampled = Sampled()
            try:
                return self._completion(await self._read(body, sampled))
            except Lost as error:
                if sampled.ids:
                    raise EngineError(f"the connection broke after {len(sampled.ids)} tokens: {error}") from error
                await self._http.pause(attempt, error)

    async def _stop(self) -> None:
        """Make the `generate` under way return what it has."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self, body: Mapping[str, Any], sampled: Sampled) -> Sampled:
        waits = self._http.waits

        async def read() -> Sampled:
            with anyio.CancelScope() as self._reading:
                await read_stream(self._http, body, sampled)
            return sampled

        try:
            return await result_or_rest(
                read, self._stop, timeout_s=waits.generate_timeout_s, grace_s=waits.abort_timeout_s
            )
        except NoResult as error:
            raise EngineError(f"no completion within generate_timeout_s={waits.generate_timeout_s}") from error
        finally:
            self._reading = None

    def _completion(self, sampled: Sampled) -> Completion:
        reasons = {"length": FinishReason.LENGTH, "stop": FinishReason.STOP}
        reason = reasons.get(sampled.finish_reason or "", FinishReason.ABORT)
        logprobs = sampled.logprobs if self._meaning.fits(self._parameters) else None
        return checked(Completion(ids=sampled.ids, finish_reason=reason), logprobs)


def request(
    model: str,
    ids: list[int],
    parameters: SamplingParameters,
    *,
    max_tokens: int,
    seed: int,
    stop_token_ids: Sequence[int] = (),
) -> dict[str, Any]:
    """The body for `/v1/completions`. What a model's own generation config would change is said out loud."""
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
        "logprobs": 0,
        "return_token_ids": True,
        "stream": True,
    }


async def read_stream(http: EngineHttp, body: Mapping[str, Any], sampled: Sampled) -> None:
    """Add what arrives to `sampled`.

    Raises:
        Lost: the connection broke, or ended before the completion did.
        EngineError: the server refuses, read another prompt than it was sent, or leaves out token ids.
    """
    async with http.events(PATH, body) as events:
        async for event in events:
            for choice in _choices(event, http.url):
                if choice.prompt_token_ids is not None and choice.prompt_token_ids != body["prompt"]:
                    raise EngineError(f"{http.url}{PATH}: the server changed the prompt's token ids")
                if choice.token_ids is None and choice.text:
                    raise NoTokenIds(f"the server at {http.url} gives no token ids")
                sampled.ids += choice.token_ids or []
                sampled.logprobs += choice.logprobs.token_logprobs if choice.logprobs else []
                sampled.finish_reason = choice.finish_reason or sampled.finish_reason
    if sampled.finish_reason is None:
        raise Lost(f"{http.url}{PATH}: the stream ended before the completion did")


def _choices(event: Mapping[str, Any], url: str) -> list[_Choice]:
    try:
        read = _Event.model_validate(event)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"]))
        raise EngineError(f"{url}{PATH}: {key}: {fault['msg']}") from error
    if read.error is not None:
        raise EngineError(f"{url}{PATH}: {read.error.message}")
    return read.choices


async def check_token_ids(http: EngineHttp, model: str, token: int) -> None:
    """Sample one token after `token`.

    Raises:
        ConfigError: the server does not say which.
        Lost: it is busy, or cannot be reached.
    """
    sampled = Sampled()
    body = request(model, [token], SamplingParameters(), max_tokens=1, seed=0)
    try:
        await read_stream(http, body, sampled)
        if not sampled.ids:
            raise NoTokenIds(f"the server at {http.url} gives no token ids")
    except NoTokenIds as error:
        raise ConfigError(str(error), key="--engine", remedy=_REMEDY) from error
    except Lost:  # nothing is said about token ids
        raise
    except EngineError as error:
        raise ConfigError(f"the server does not complete token ids: {error}", key="--engine", remedy=_REMEDY) from error


_REMEDY = "serve the model with vLLM (return_token_ids) or SGLang, or give its directory to run it in process"


async def greedy_logprob(http: EngineHttp, model: str, token: int, temperature: float) -> float | None:
    """What the server reports of the likeliest token after `token`; see `logprobs.detect_logprob_semantics`."""
    sampled = Sampled()
    parameters = SamplingParameters(temperature=temperature, top_p=GREEDY_TOP_P)
    await read_stream(http, request(model, [token], parameters, max_tokens=1, seed=0), sampled)
    return sampled.logprobs[0] if sampled.logprobs else None
