"""The client of the asynchronous modes, which interrupt generations for new weights: it records each attempt."""

from __future__ import annotations

from contextvars import ContextVar
from hashlib import blake2b
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from mcp_rollout.rollout.types import Attempt
from mcp_rollout.rollout.verl.settings import KEY

ATTEMPTS_KEY = "mcp_attempts"
"""Key of an output's `extra_fields`: the list of its `Attempt`s."""
_SEEDED_BY_POSITION = "transformers_cpu"
"""The engine that draws by a request's seed and a token's position."""
_ATTEMPTS: ContextVar[list[Attempt]] = ContextVar("mcp_rollout_engine_attempts")


class _Attempts(LLMServerClient):
    """The base of verl's resuming client, which calls it once for each attempt.

    Args:
        end_ids: Ids at which the engine ends a generation by itself.
    """

    def __init__(self, config: DictConfig, *args: Any, end_ids: frozenset[int] = frozenset(), **options: Any) -> None:
        super().__init__(config, *args, **options)
        self._end_ids = end_ids
        self._seed_key = OmegaConf.select(config, f"{KEY}.sampling_seed_key")
        # There a resumed generation goes on as if it had not been interrupted.
        self._reseeds = config.actor_rollout_ref.rollout.name != _SEEDED_BY_POSITION

    async def generate(self, request_id: str, *, sampling_params: dict[str, Any], **inputs: Any) -> TokenOutput:  # pyright: ignore[reportIncompatibleMethodOverride]
        attempts = _ATTEMPTS.get()
        seed = sampling_params.get(self._seed_key) if self._seed_key else None
        if seed is not None and attempts and self._reseeds:
            # The engine would draw the numbers of the generation's beginning once more.
            seed = _resumed(seed, len(attempts))
            sampling_params = sampling_params | {self._seed_key: seed}
        output = await super().generate(request_id, sampling_params=sampling_params, **inputs)
        if output.token_ids:
            version = output.extra_fields.get("global_steps")
            attempts.append(Attempt(tokens=len(output.token_ids), weights_version=version, seed=seed))
            # SGLang decodes once more after the interruption, and does not look whether that token ends the turn.
            ends = self._end_ids.union(sampling_params.get("stop_token_ids") or ())
            if output.stop_reason in ("aborted", "abort") and output.token_ids[-1] in ends:
                output.stop_reason = "completed"
        return output


class AttemptsClient(FullyAsyncLLMServerClient, _Attempts):
    """Resumes interrupted generations as verl's client does, each attempt with a seed of its own.

    Attempts without a token are not among those of the output, nor are their weights among its versions.
    """

    async def generate(self, request_id: str, **inputs: Any) -> TokenOutput:  # pyright: ignore[reportIncompatibleMethodOverride]
        attempts: list[Attempt] = []
        token = _ATTEMPTS.set(attempts)
        try:
            output = await super().generate(request_id, **inputs)
        finally:
            _ATTEMPTS.reset(token)
        if attempts:
            first, last = attempts[0].weights_version, attempts[-1].weights_version
            output.extra_fields |= {"min_global_steps": first, "max_global_steps": last}
        output.extra_fields[ATTEMPTS_KEY] = attempts
        return output


def _resumed(seed: int, attempt: int) -> int:
    """The seed of a generation's later attempt; hashed, so that it is not that of another turn."""
    return int.from_bytes(blake2b(f"{seed}/{attempt}".encode(), digest_size=8).digest()) % (2**31 - 1)
