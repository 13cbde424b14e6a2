"""SGLang's native `/generate`: token ids in, token ids out.

Fields as in SGLang 0.5: `input_ids`, `rid`, `sampling_params`, `return_logprob`; the answer's `output_ids` and
`meta_info` with `finish_reason`, `output_token_logprobs` ([logprob, id, text] each) and `weight_version`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from rollout.engines.completions import TokenId, checked, version_number
from rollout.engines.http import EngineHttp, Lost
from rollout.engines.interruption import NoResult, result_or_rest
from rollout.engines.logprobs import GREEDY_TOP_P, LogprobSemantics
from rollout.engines.parameters import SamplingParameters
from rollout.environment.task import Origin, TurnSeeds
from rollout.errors import EngineError
from rollout.types import Completion, FinishReason

ALL = -1
"""`top_k` for no limit."""


class _Finish(BaseModel):
    type: str


class _Versions(BaseModel):
    version: str | int | None


class _Meta(BaseModel):
    finish_reason: _Finish | None = None
    output_token_logprobs: list[tuple[float | None, int, Any]] | None = None
    output_token_sampling_logprobs: list[float | None] | None = None
    weight_version: str | int | None = None
    weight_versions: list[_Versions] | None = None


class Answer(BaseModel):
    """What `/generate` says."""

    output_ids: list[TokenId] = []
    meta_info: _Meta


class SGLangPolicy:
    """One trajectory's access to an SGLang server.

    A generation that is cancelled is aborted on the server and comes back with its partial tokens; see
    `interruption.result_or_rest` for the cancellation itself.
    """

    def __init__(
        self,
        http: EngineHttp,
        parameters: SamplingParameters,
        origin: Origin,
        *,
        meaning: LogprobSemantics,
        stop_token_ids: Sequence[int],
    ) -> None:
        self._http, self._parameters, self._meaning = http, parameters, meaning
        self._seeds, self._stops = TurnSeeds(origin, base=parameters.seed), list(stop_token_ids)
        self._rid: str | None = None

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        seed = self._seeds.next(turn)
        body = request(ids, self._parameters, max_tokens=max_tokens, seed=seed, stop_token_ids=self._stops)
        waits = self._http.waits
        attempt = 0
        while True:
            attempt += 1
            # A name for each attempt: the server may still know the one before.
            self._rid = uuid4().hex
            try:
                answer = await result_or_rest(
                    partial(ask, self._http, {**body, "rid": self._rid}),
                    self._stop,
                    timeout_s=waits.generate_timeout_s,
                    grace_s=waits.abort_timeout_s,
                )
            except Lost as error:
                await self._http.pause(attempt, error)
            except NoResult as error:
                raise EngineError(f"no completion within generate_timeout_s={waits.generate_timeout_s}") from error
            else:
                return completion(answer, self._meaning, self._parameters)
            finally:
                self._rid = None

    async def _stop(self) -> None:
        """Make the `generate` under way return what it has. Raises EngineError: the server cannot be told."""
        if self._rid is not None:
            await self._http.tell("/abort_request", {"rid": self._rid})


def request(
    ids: list[int],
    parameters: SamplingParameters,
    *,
    max_tokens: int,
    seed: int,
    stop_token_ids: Sequence[int],
) -> dict[str, Any]:
    """The body for `/generate`, without `rid`. Where tokens are excluded, the server is asked to renormalise."""
    params: dict[str, Any] = {
        "max_new_tokens": max_tokens,
        "temperature": parameters.temperature,
        "sampling_seed": seed,
        "stop_token_ids": list(stop_token_ids),
    }
    if parameters.is_truncated:
        params |= {"top_p": parameters.top_p, "top_k": parameters.top_k if parameters.top_k > 0 else ALL}
    body: dict[str, Any] = {"input_ids": ids, "sampling_params": params, "return_logprob": True}
    return body | ({"return_sampling_mask": True} if parameters.is_truncated else {})


async def ask(http: EngineHttp, body: Mapping[str, Any]) -> Answer:
    """Raises EngineError: the server refuses, or answers off its protocol."""
    try:
        return Answer.model_validate(await http.post("/generate", body))
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"]))
        raise EngineError(f"{http.url}/generate: {key}: {fault['msg']}") from error


def completion(answer: Answer, meaning: LogprobSemantics, parameters: SamplingParameters) -> Completion:
    """Raises EngineError: the answer contradicts itself."""
    meta = answer.meta_info
    kind = meta.finish_reason.type if meta.finish_reason else "stop"
    reason = {"length": FinishReason.LENGTH, "abort": FinishReason.ABORT}.get(kind, FinishReason.STOP)
    reported = meta.output_token_logprobs or []
    if reported and [token for _, token, _ in reported] != answer.output_ids:
        raise EngineError("the logprobs are of other tokens than the completion's")
    logprobs: list[float | None] | None = None
    if parameters.is_truncated and meta.output_token_sampling_logprobs is not None:
        logprobs = meta.output_token_sampling_logprobs
    elif meaning.fits(parameters):
        logprobs = [logprob for logprob, _, _ in reported]
    versions = [span.version for span in meta.weight_versions or []] or [meta.weight_version]
    return checked(
        Completion(
            ids=answer.output_ids,
            finish_reason=reason,
            weights_version=(version_number(versions[0]), version_number(versions[-1])),
        ),
        logprobs,
    )


async def greedy_logprob(http: EngineHttp, token: int, temperature: float) -> float | None:
    """What the server reports of the likeliest token after `token`; see `logprobs.detect_logprob_semantics`."""
    params = {"max_new_tokens": 1, "temperature": temperature, "top_p": GREEDY_TOP_P}
    answer = await ask(http, {"input_ids": [token], "sampling_params": params, "return_logprob": True})
    reported = answer.meta_info.output_token_logprobs
    return reported[0][0] if reported else None


async def renormalises(http: EngineHttp, token: int, parameters: SamplingParameters) -> bool:
    """Whether the server can say what a token's probability was among those that top-p and top-k left."""
    body = request([token], parameters, max_tokens=1, seed=0, stop_token_ids=())
    answer = await ask(http, body)
    return answer.meta_info.output_token_sampling_logprobs is not None
