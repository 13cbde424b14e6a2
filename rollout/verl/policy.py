"""A `Policy` that generates with verl's inference servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from mcp_rollout.rollout.engines.sampling import with_logprobs
from mcp_rollout.rollout.environment.task import Origin, TurnSeeds
from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.loop.limits import shielded
from mcp_rollout.rollout.types import Completion, FinishReason
from mcp_rollout.rollout.verl.client import ATTEMPTS_KEY


class VerlPolicy:
    """Token-in-token-out generation through verl's `LLMServerClient`, sticky to one server per trajectory.

    A generation ends by itself, also where the trajectory's time is over.

    Args:
        request_id: The same for all turns of a trajectory; verl's client chooses the server by it.
        stop_token_ids: Ids at which generation has to stop, in addition to the model's own.
        end_ids: The model's own end-of-sequence ids, as far as the tokenizer has them.
        engine_has_id: Whether the engine gets this id, as under `full_determinism`; otherwise verl's client makes a
            fresh one for each request, and does not return it.
        seed_key: Name of the engine's sampling parameter for a request's seed; None leaves sampling unseeded.
        seed: Seed of the run.
        images: Returns the images in the context so far, which engines take separately from the ids.
    """

    def __init__(
        self,
        client: LLMServerClient,
        request_id: str,
        origin: Origin,
        sampling_params: dict[str, Any],
        *,
        stop_token_ids: Sequence[int],
        end_ids: Sequence[int] = (),
        seed_key: str | None,
        seed: int = 0,
        images: Callable[[], list[Any]] = list,
        engine_has_id: bool = False,
    ) -> None:
        self._images = images
        self._engine_ids = (request_id,) if engine_has_id else ()
        self._client, self._request_id, self._seed_key = client, request_id, seed_key
        stops = {*(sampling_params.get("stop_token_ids") or ()), *stop_token_ids}
        self._ends = stops | set(end_ids)
        self._seeds = TurnSeeds(origin, base=seed)
        self._params = sampling_params | ({"stop_token_ids": sorted(stops)} if stops else {})

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        params = self._params | {"max_tokens": max_tokens}
        seeds: tuple[int, ...] = ()
        if self._seed_key is not None:
            seeds = (self._seeds.next(turn),)
            params[self._seed_key] = seeds[0]
        images = self._images()
        inputs: dict[str, Any] = {"prompt_ids": ids} | ({"image_data": images} if images else {})
        try:
            # Shielded from the trajectory's clock: verl's client cannot abort a request, and a server would go on
            # generating after its load balancer has counted the request out, also while the trainer releases the
            # server's memory. `max_tokens` bounds the wait.
            request = self._client.generate(request_id=self._request_id, sampling_params=params, **inputs)
            output = await shielded(request)
        except Exception as error:  # the engine's boundary: Ray wraps any exception of a server
            raise EngineError(f"{type(error).__name__}: {error}") from error
        logprobs = output.log_probs
        # The client of verl's asynchronous modes returns an empty list if no logprobs were requested. A completion
        # without tokens has an empty list of logprobs, for which some engines return None.
        if not logprobs and not (output.token_ids and self._params.get("logprobs")):
            logprobs = None if output.token_ids else []
        completion = Completion(
            ids=list(output.token_ids),
            finish_reason=self._finish_reason(output, max_tokens),
            request_ids=self._engine_ids,
            seeds=seeds,
            weights_version=(
                output.extra_fields.get("min_global_steps"),
                output.extra_fields.get("max_global_steps"),
            ),
            attempts=tuple(output.extra_fields.get(ATTEMPTS_KEY, ())),
        )
        return with_logprobs(completion, logprobs)

    def _finish_reason(self, output: TokenOutput, max_tokens: int) -> FinishReason:
        # vLLM's adapter returns "completed" for a stop and for a cut at max_tokens alike; the last token tells which.
        if output.stop_reason in ("aborted", "abort"):
            return FinishReason.ABORT
        cut = output.stop_reason == "length" or len(output.token_ids) >= max_tokens
        stopped = bool(output.token_ids) and output.token_ids[-1] in self._ends
        return FinishReason.LENGTH if cut and not stopped else FinishReason.STOP
