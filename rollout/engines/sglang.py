"""SGLang's native `/generate`: token ids in, token ids out.

Fields as in SGLang 0.5: `input_ids`, `rid`, `sampling_params`, `return_logprob`; the answer's `output_ids` and
`meta_info` with `finish_reason`, `output_token_logprobs` ([logprob, id, text] each) and `weight_version`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from pydantic import BaseModel

from mcp_rollout.rollout.engines.http import EngineHttp, HttpPolicy
from mcp_rollout.rollout.engines.sampling import SamplingParameters, TokenId, with_logprobs
from mcp_rollout.rollout.engines.timeouts import result_or_partial
from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.types import Completion, FinishReason

GENERATE = "/generate"


class _Finish(BaseModel):
    type: str


class _Versions(BaseModel):
    version: str | int | None


class _Meta(BaseModel):
    finish_reason: _Finish | None = None
    output_token_logprobs: list[tuple[float | None, int, Any]] | None = None
    weight_version: str | int | None = None
    weight_versions: list[_Versions] | None = None


class Generated(BaseModel):
    """The answer of `/generate`."""

    output_ids: list[TokenId] = []
    meta_info: _Meta


class SGLangPolicy(HttpPolicy):
    """One trajectory's access to an SGLang server."""

    async def _generate_once(self, ids: list[int], *, max_tokens: int, seed: int) -> Completion:
        # An id for each attempt: the server may still know the one before.
        rid = uuid4().hex
        body = request(ids, self._parameters, max_tokens=max_tokens, seed=seed, stop_token_ids=self._stops)
        answer = await result_or_partial(
            partial(self._http.post_for, Generated, GENERATE, {**body, "rid": rid}),
            # It answers without tokens: those that were sampled come as the answer of /generate, which goes on until
            # then.
            partial(self._http.post, "/abort_request", {"rid": rid}),
            self._http.timeouts,
        )
        return replace(completion(answer, self._parameters), request_ids=(rid,))


def request(
    ids: list[int], parameters: SamplingParameters, *, max_tokens: int, seed: int, stop_token_ids: Sequence[int]
) -> dict[str, Any]:
    """The body for `/generate`, without `rid`."""
    params: dict[str, Any] = {
        "max_new_tokens": max_tokens,
        "temperature": parameters.temperature,
        "sampling_seed": seed,
        "stop_token_ids": list(stop_token_ids),
    }
    if parameters.is_truncated:
        params |= {"top_p": parameters.top_p, "top_k": parameters.top_k if parameters.top_k > 0 else -1}
    return {"input_ids": ids, "sampling_params": params, "return_logprob": True}


def completion(answer: Generated, parameters: SamplingParameters) -> Completion:
    """The answer as a completion. Raises EngineError: the answer contradicts itself."""
    meta = answer.meta_info
    kind = meta.finish_reason.type if meta.finish_reason else "stop"
    reason = {"length": FinishReason.LENGTH, "abort": FinishReason.ABORT}.get(kind, FinishReason.STOP)
    reported = meta.output_token_logprobs or []
    if reported and [token for _, token, _ in reported] != answer.output_ids:
        raise EngineError("the logprobs are of other tokens than the completion's")
    logprobs = [logprob for logprob, _, _ in reported] if reported and parameters.has_one_logprob else None
    versions = [span.version for span in meta.weight_versions or []] or [meta.weight_version]
    sampled = Completion(
        ids=answer.output_ids,
        finish_reason=reason,
        weights_version=(_trainer_step(versions[0]), _trainer_step(versions[-1])),
    )
    return with_logprobs(sampled, logprobs)


def _trainer_step(version: str | int | None) -> int | None:
    """The trainer step in a server's name for its weights; None for another kind of name."""
    text = str(version)
    return int(text) if text.isascii() and text.isdigit() else None


async def check_generates(http: EngineHttp, token: int) -> None:
    """Sample one token after `token`. Raises EngineError where the server does not."""
    body = request([token], SamplingParameters(), max_tokens=1, seed=0, stop_token_ids=())
    await http.post_for(Generated, GENERATE, body)
