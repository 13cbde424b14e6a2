"""Rewards at the turns that earned them, in the form that verl's v1 trainer reads: `rm_scores`, one number a token."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from rollout.trace.record import Segment, SpanKind, Trace


class DenseOutput(AgentLoopOutput):
    """verl's output, for a reward that does not all come at the last token.

    verl's v1 worker asks `as_dict` for a sample's fields; there the reward is placed. Outcome estimators (GRPO) sum
    over tokens and see no difference; estimators that go from token to token (GAE, REINFORCE++) see when it was earned.
    verl's v0 trainer reads `reward_score`, the sum, alone.
    """

    reward_at: dict[int, float] = Field(default_factory=dict)
    """By position in the response; the sum is `reward_score`."""

    def as_dict(self) -> dict[str, Any]:
        fields = super().as_dict()
        placed: dict[int, float] = fields.pop("reward_at", {})
        if "rm_scores" in fields and placed:
            fields["rm_scores"].zero_()
            for position, reward in placed.items():
                fields["rm_scores"][position] = reward
        return fields


def reward_by_position(trace: Trace, segment: Segment | None = None) -> dict[int, float]:
    """Where in the response each reward is earned; the sum is the trajectory's score.

    A turn's own reward stands at its last token that is trained on, all else at the segment's last such token:
    verl's estimators pass over rewards of tokens that are masked.

    Args:
        segment: the training sample in question, the trajectory's last one where it is None.
    """
    segment = trace if segment is None else segment
    if trace.reward is None or not segment.response_ids:
        return {}
    ends = turn_ends(segment)
    last = max(ends.values(), default=len(segment.response_ids) - 1)
    placed: dict[int, float] = {}
    for turn, earned in enumerate(trace.reward.turns):
        if earned and turn in ends:
            placed[ends[turn]] = earned
    placed[last] = placed.get(last, 0.0) + trace.reward.score - sum(placed.values())
    return placed


def turn_ends(segment: Segment) -> dict[int, int]:
    """By turn, the position of its last token that is trained on; turns without one are left out."""
    ends: dict[int, int] = {}
    for span in segment.spans:
        if span.kind is not SpanKind.CONTEXT:
            trained = [position for position in range(span.start, span.end) if segment.loss_mask[position]]
            ends.update({span.turn: trained[-1]} if trained else {})
    return ends
