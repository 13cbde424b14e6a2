"""One turn's completion, within its budget of thinking."""

from __future__ import annotations

from collections.abc import Sequence

from rollout.loop.thinking import markers
from rollout.types import Completion, FinishReason, Policy, TokenBuilder


async def generate(
    policy: Policy, tokens: TokenBuilder, context: Sequence[int], *, max_tokens: int, turn: int, thinking: int | None
) -> Completion:
    """Continue the context by a turn.

    With a budget of `thinking` tokens the engine is asked for these first. A turn that is still thinking then is closed
    with a marker that nobody sampled, any other is left as it is, and the engine continues it to `max_tokens` in all,
    the marker included. Where the marker leaves no room for a token, the turn ends unclosed, like any that is cut.

    Raises:
        ConfigError: there is a budget, and the policy's thoughts have no marker that ends them.
    """
    first = max_tokens if thinking is None else min(thinking, max_tokens)
    begun = await policy.generate(list(context), max_tokens=first, turn=turn)
    # Cut by the engine itself, before the budget: its context is full, and asked again it would say no more.
    if begun.finish_reason is not FinishReason.LENGTH or len(begun.ids) < first or first == max_tokens:
        return begun
    marker = tokens.encode(markers(tokens).closing) if await is_thinking(begun.ids, tokens) else []
    left = max_tokens - len(begun.ids) - len(marker)
    if left < 1:
        return begun
    said = [*begun.ids, *marker]
    rest = await policy.generate([*context, *said], max_tokens=left, turn=turn)
    return Completion(
        ids=said + rest.ids,
        logprobs=_joined(begun, len(marker), rest),
        finish_reason=rest.finish_reason,
        weights_version=(begun.weights_version[0], rest.weights_version[1]),
        forced=(len(begun.ids), len(said)) if marker else None,
        generations=2,
    )


async def is_thinking(ids: list[int], tokens: TokenBuilder) -> bool:
    """Whether a completion stands within a thought."""
    parsed = await tokens.parse(ids, ())
    return parsed.in_thought and parsed.thoughts[-1][1] == len(ids)


def _joined(begun: Completion, marker: int, rest: Completion) -> list[float] | None:
    if begun.logprobs is None or rest.logprobs is None:
        return None
    return [*begun.logprobs, *[0.0] * marker, *rest.logprobs]
