"""One generation of a trajectory: sampled, parsed, recorded and filtered."""

from __future__ import annotations

import time

from rollout.environment.sections import ThinkingLoss
from rollout.loop.context import Context
from rollout.loop.filters import Filters
from rollout.loop.lending import lent_context
from rollout.loop.limits import is_time_over, shielded
from rollout.loop.thinking import generate
from rollout.trace.record import StopReason, Trace
from rollout.types import FinishReason, Parsed, Policy


async def sample(
    trace: Trace, policy: Policy, context: Context, filters: Filters, *, max_tokens: int | None = None
) -> Parsed:
    """Generate once, append the ids exactly as sampled, and apply the filters.

    The trajectory ends with a generation that was aborted or exceeded its time, and with one that the length limit cut
    before a readable call: part of a sentence is neither an answer nor a message to a user.

    Args:
        max_tokens: a bound on this turn beside the trajectory's.
    """
    thinking, tokens, most = context.environment.thinking, context.tokens, context.limits.completion_tokens(trace)
    most = most if max_tokens is None else min(most, max_tokens)
    began_at, began = time.time(), context.clock.time()
    with context.spans.generation(trace, most):
        with lent_context(trace):
            completion = await generate(
                policy,
                tokens,
                trace.context,
                max_tokens=most,
                turn=len(trace.turns),
                thinking=thinking.tokens_per_turn,
            )
        generate_s = context.clock.time() - began
        # Shielded, so that what was sampled is recorded where the time ran out during the generation.
        parsed = await shielded(tokens.parse(completion.ids, context.callable_schemas))
        edit = tokens.completion(trace.context, completion.ids)
        turn = trace.add_completion(completion, parsed, edit, mask_thinking=thinking.loss is ThinkingLoss.MASK)
    turn.began_at, turn.generate_s = began_at, generate_s
    filters.judge(trace, completion, parsed)
    # A filter's stop reason has precedence over the two limits: it says what the policy did. Filters skip aborted
    # completions.
    if completion.finish_reason is FinishReason.ABORT:
        trace.stop_reason = StopReason.ABORTED
    elif is_time_over():
        trace.stop_reason = trace.stop_reason or StopReason.TIME_LIMIT
    elif completion.finish_reason is FinishReason.LENGTH and not parsed.calls:
        trace.stop_reason = trace.stop_reason or StopReason.TOKEN_LIMIT
    return parsed
