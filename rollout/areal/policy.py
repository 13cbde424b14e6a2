# pyright: basic, reportMissingImports=false
"""A `Policy` that generates with AReaL's inference engine."""

from __future__ import annotations

from itertools import groupby

from areal.api import InferenceEngine, ModelRequest
from areal.api.cli_args import GenerationHyperparameters

from mcp_rollout.rollout.engines.sampling import with_logprobs
from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.loop.limits import shielded
from mcp_rollout.rollout.types import Attempt, Completion, FinishReason

_MESSAGE = 300
"""Characters at the end of an engine's error, which begins with the whole request."""


class ArealPolicy:
    """Token-in-token-out generation through `agenerate`, sticky to one server per trajectory.

    AReaL resumes a generation that a weight update interrupts, so the tokens of one turn can have several versions.

    Args:
        gconfig: sampling, with the ids at which generation has to stop.
        rid: the same for all turns of a trajectory; AReaL chooses the server by it.
    """

    def __init__(self, engine: InferenceEngine, gconfig: GenerationHyperparameters, rid: str) -> None:
        self._engine, self._gconfig, self._rid = engine, gconfig, rid

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        gconfig = self._gconfig.new(n_samples=1, max_new_tokens=max_tokens)
        request = ModelRequest(rid=self._rid, input_ids=list(ids), gconfig=gconfig)
        try:
            # Shielded from the trajectory's clock: AReaL gives the server no id by which a request could be aborted.
            response = await shielded(self._engine.agenerate(request))
        except Exception as error:  # the engine's boundary: AReaL raises RuntimeError, TypeError and aiohttp's errors
            raise EngineError(f"{type(error).__name__}: {str(error)[-_MESSAGE:]}") from error
        tokens, logprobs, versions = response.output_tokens, response.output_logprobs, response.output_versions
        if list(response.input_tokens) != ids:
            raise EngineError("the engine read other ids than it was given")
        if len(versions) != len(tokens):
            raise EngineError(f"{len(versions)} versions for {len(tokens)} tokens")
        sampled = Completion(
            ids=list(tokens),
            finish_reason=FinishReason.LENGTH if response.stop_reason == "length" else FinishReason.STOP,
            weights_version=(versions[0], versions[-1]) if versions else (None, None),
            attempts=tuple(Attempt(tokens=len(list(run)), weights_version=each) for each, run in groupby(versions)),
        )
        return with_logprobs(sampled, logprobs)
