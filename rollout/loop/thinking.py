"""Thinking: its budget within a turn, and the context without the thinking of earlier turns.

Dropping thinking keeps the sampled ids of calls and answers. Rendering the messages again would replace them by the
template's own text, and lose what could not be read as a call. It costs a copy of the context at each user message; the
engine's prefill of everything after the first dropped thought costs far more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import structlog

from mcp_rollout.gateway.errors import ConfigError, GatewayError
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.sections import ThinkingContext
from mcp_rollout.rollout.errors import EngineError, RolloutError
from mcp_rollout.rollout.formats import FORMATS
from mcp_rollout.rollout.loop.limits import is_time_over
from mcp_rollout.rollout.trace.segment import Segment, Span, SpanKind
from mcp_rollout.rollout.types import Completion, FinishReason, Policy, ThoughtMarkers, TokenBuilder

log = structlog.get_logger(__name__)

CHANGED = "the policy changed the ids that it was given; it has to copy those that it keeps or changes"
_MARKER_TOKENS = 8
"""The most tokens of an opening marker and the newlines around it."""


def check_thoughts(environment: Environment, tool_format: str) -> None:
    """Validate the environment's `thinking` section for a tool format.

    Raises:
        ConfigError: dropping or limiting thinking is configured, and models of this format think in messages of their
            own (gpt-oss), without a marker that ends a thought.
    """
    known, thinking = FORMATS.get(tool_format), environment.thinking
    if known is None or known.thought is not None:
        return
    used = {
        "thinking.context": thinking.context is ThinkingContext.DROP_PREVIOUS,
        "thinking.tokens_per_turn": thinking.tokens_per_turn is not None,
    }
    for key in (key for key, is_used in used.items() if is_used):
        problem = f"needs thinking between two markers, and models of the format {tool_format!r} think in messages"
        raise ConfigError(problem, file=environment.file, key=key, remedy="leave it out")


def markers(tokens: TokenBuilder) -> ThoughtMarkers:
    """The policy's thought markers. Raises ConfigError where its format has none, see `check_thoughts`."""
    if tokens.thought is None:
        raise ConfigError("the policy's thoughts have no markers", key="thinking", remedy="keep context, and no budget")
    return tokens.thought


async def generate(
    policy: Policy, tokens: TokenBuilder, context: list[int], *, max_tokens: int, turn: int, thinking: int | None
) -> Completion:
    """Continue the context by one turn.

    With a thinking budget the engine first generates at most `thinking` tokens. If the turn is still thinking then, the
    closing marker is appended, which is not sampled. The engine then continues to `max_tokens` in total, the marker
    included. Where the marker leaves no room for another token, or the trajectory's time is over, the turn ends with
    its thought open.

    Raises:
        ConfigError: there is a budget, and the policy's thoughts have no closing marker.
        EngineError: the policy raised an error of its own, or returned no `Completion`, or its logprobs are not one
            finite number for each id.
    """
    first = max_tokens if thinking is None else min(thinking, max_tokens)
    begun = await asked(policy, context, max_tokens=first, turn=turn)
    # Shorter than `first` at LENGTH: the engine's context is full, and another request would return nothing.
    if (
        begun.finish_reason is not FinishReason.LENGTH
        or len(begun.ids) < first
        or first == max_tokens
        or is_time_over()
    ):
        return begun
    marker = tokens.encode(markers(tokens).closing) if await _is_thinking(begun.ids, tokens) else []
    ids = [*begun.ids, *marker]
    if max_tokens - len(ids) < 1:
        return begun
    rest = await asked(policy, [*context, *ids], max_tokens=max_tokens - len(ids), turn=turn)
    logprobs = None
    if begun.logprobs is not None and rest.logprobs is not None:
        # The marker was not sampled and is not in the loss. Its zeros keep one value per id.
        logprobs = [*begun.logprobs, *[0.0] * len(marker), *rest.logprobs]
    return Completion(
        ids=ids + rest.ids,
        logprobs=logprobs,
        finish_reason=rest.finish_reason,
        # The weights may have been updated between the two requests.
        weights_version=(begun.weights_version[0], rest.weights_version[1]),
        forced=(len(begun.ids), len(ids)) if marker else None,
        generations=2,
        request_ids=begun.request_ids + rest.request_ids,
        seeds=begun.seeds + rest.seeds,
        attempts=begun.attempts + rest.attempts,
    )


async def asked(policy: Policy, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
    """What the policy returned, once it was checked; policies are other people's programs as well.

    Raises `EngineError`.
    """
    length = len(ids)
    try:
        completion: Any = await policy.generate(ids, max_tokens=max_tokens, turn=turn)
    except (ConfigError, GatewayError, RolloutError):
        raise
    except Exception as error:  # the policy's boundary
        log.warning("policy failed", exc_info=error)
        raise EngineError(f"the policy raised {type(error).__name__}: {error}") from error
    if len(ids) != length:
        raise EngineError(CHANGED)
    if not isinstance(completion, Completion):
        raise EngineError(f"the policy returned {type(completion).__name__} in place of a Completion")
    if completion.logprobs is not None and len(completion.logprobs) != len(completion.ids):
        raise EngineError(f"the policy returned {len(completion.logprobs)} logprobs for {len(completion.ids)} ids")
    if completion.logprobs and not _is_finite(completion.logprobs):
        raise EngineError("the policy returned logprobs that are not finite numbers")
    return completion


def _is_finite(logprobs: list[float]) -> bool:
    try:
        return math.isfinite(sum(logprobs))  # many times as fast as looking at each
    except TypeError:
        return False


async def _is_thinking(ids: list[int], tokens: TokenBuilder) -> bool:
    """Whether a completion ends inside a thought."""
    parsed = await tokens.parse(ids, ())
    return parsed.in_thought and parsed.thoughts[-1][1] == len(ids)


def without_thinking(segment: Segment, tokens: TokenBuilder) -> list[int]:
    """Ids of prompt and response without the thoughts, their markers and the newlines after them.

    An opening marker that the template put into the generation prompt is dropped with its thought.

    Raises:
        ConfigError: the policy's thoughts have no markers.
    """
    opening = markers(tokens).opening
    ids = list(segment.prompt_ids)
    thought: Span | None = None
    for span in segment.spans:
        own = segment.response_ids[span.start : span.end]
        if span.kind is SpanKind.THINKING:
            thought = span
            _drop_opening(ids, opening, tokens)
        # The marker that closed a thought goes with it.
        elif span.kind is SpanKind.FORCED:
            continue
        elif span.kind is SpanKind.COMPLETION and thought is not None and thought.turn == span.turn:
            ids += _without_newlines(own, tokens)
        else:
            ids += own
    return ids


def _drop_opening(ids: list[int], opening: str, tokens: TokenBuilder) -> None:
    """Delete an opening marker at the end of the context before a thought."""
    # A marker can be one token or several, alone or joined with newlines, so decoded text is compared. A tail that the
    # marker does not end with cannot become the marker by getting longer.
    for count in range(1, min(_MARKER_TOKENS, len(ids)) + 1):
        tail = tokens.decode(ids[-count:]).strip()
        if tail == opening:
            del ids[-count:]
            return
        if not opening.endswith(tail):
            return


def _without_newlines(ids: Sequence[int], tokens: TokenBuilder) -> Sequence[int]:
    """A completion's ids after its thought, without leading tokens that consist of newlines only."""
    begin = 0
    while begin < len(ids) and (text := tokens.decode(ids[begin : begin + 1])) and not text.strip("\n"):
        begin += 1
    return ids[begin:]
