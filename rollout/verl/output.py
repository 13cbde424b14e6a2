"""Conversion of a trace to verl's `AgentLoopOutput`s, with the same keys for every outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import Field
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from mcp_rollout.rollout.tokens.images import DecodedImages
from mcp_rollout.rollout.trace.record import Segment, SpanKind, Trace
from mcp_rollout.rollout.verl.rolled_out import columns

TRACE_KEY, SEGMENT_KEY = "mcp_trace", "mcp_segment"
"""Keys of a sample's `extra_fields`."""


class TurnRewardOutput(AgentLoopOutput):
    """verl's output with a reward for each turn instead of one at the last token.

    verl's v1 worker calls `as_dict` for a sample's fields, among them `rm_scores`, one reward per response token.
    Outcome estimators (GRPO) sum over tokens and see no difference; token-level estimators (GAE, REINFORCE++) see when
    a reward was earned. verl's v0 trainer reads only the sum, `reward_score`.
    """

    turn_rewards: dict[int, float] = Field(default_factory=dict)
    """Reward by position in the response; the sum is `reward_score`."""
    columns: dict[str, Any] = Field(default_factory=dict)
    """Further columns of the sample, see `rollout.verl.rolled_out`."""

    def as_dict(self) -> dict[str, Any]:
        fields = super().as_dict()
        rewards: dict[int, float] = fields.pop("turn_rewards", {})
        fields |= fields.pop("columns", {})
        if "rm_scores" in fields and rewards:
            # verl has put the whole score at the last token.
            fields["rm_scores"].zero_()
            for position, reward in rewards.items():
                fields["rm_scores"][position] = reward
        return fields


def to_outputs(trace: Trace, parts: Sequence[str], *, pad_token_id: int = 0) -> list[AgentLoopOutput]:
    """Convert a played trajectory to its training samples: one for each segment of its context.

    verl gives all of them the reward of the last, and GRPO the advantage computed on the last one's tokens. A segment
    without a token in the loss is therefore left out, unless it is the only one.

    Args:
        parts: Names of the reward parts of all environments of the run, so that all samples have the same keys.
        pad_token_id: The masked response token of a trajectory in which no token was sampled.
    """
    played = [(number, each) for number, each in enumerate((*trace.earlier, trace)) if each.turns_sampled]
    # Where all are masked, the last one remains: its score counts in the group's baseline.
    samples = [(number, each) for number, each in played if each.is_in_loss] or played[-1:]
    if not samples:
        void = Segment(prompt_ids=trace.prompt_ids, response_ids=[pad_token_id], loss_mask=[0], logprobs=[0.0])
        return [_output(trace, len(trace.earlier), void, range(len(trace.turns)), parts)]
    return [_output(trace, number, segment, segment.turns_sampled, parts) for number, segment in samples]


def _output(
    trace: Trace, number: int, segment: Segment, turns_sampled: Iterable[int], parts: Sequence[str]
) -> AgentLoopOutput:
    """One training sample: the segment with this number, in which these turns were sampled."""
    turns = [trace.turns[turn] for turn in turns_sampled]
    versions = [version for turn in turns for version in turn.weights_version if version is not None]
    return TurnRewardOutput(
        prompt_ids=segment.prompt_ids,
        response_ids=segment.response_ids,
        response_mask=segment.loss_mask,
        response_logprobs=segment.logprobs if trace.has_logprobs else None,
        multi_modal_data={"images": DecodedImages(trace.messages).first(segment.images)} if segment.images else {},
        mm_processor_kwargs={},
        reward_score=trace.reward.score if trace.reward else 0.0,
        turn_rewards=turn_rewards(trace, segment),
        columns=columns(trace, segment),
        num_turns=len(trace.turns) + trace.user_turns + 1,
        metrics=AgentLoopMetrics(
            generate_sequences=sum(turn.generate_s for turn in turns),
            tool_calls=sum(event.elapsed_s for turn in turns for event in turn.tools),
        ),
        extra_fields={
            "turn_scores": [turn.reward for turn in trace.turns],
            "tool_rewards": [event.reward or 0.0 for turn in trace.turns for event in turn.tools],
            "min_global_steps": min(versions, default=None),
            "max_global_steps": max(versions, default=None),
            "reward_extra_info": reward_extra_info(trace, parts),
            **origin_of_sample(trace, number),
        },
    )


def origin_of_sample(trace: Trace, segment: int) -> dict[str, Any]:
    """The sample's trace and segment, with which the trainer names what it computed: verl's keys number samples."""
    return {TRACE_KEY: trace.id, SEGMENT_KEY: segment}


def turn_rewards(trace: Trace, segment: Segment | None = None) -> dict[int, float]:
    """Place the rewards of a trajectory in a training sample.

    A turn's own reward is placed at its last token that is in the loss, the rest of the score at the sample's last such
    token: verl's estimators skip rewards on masked tokens.

    Args:
        segment: The training sample; None for the trajectory's last one.

    Returns:
        Reward by position in the response; the sum is the trajectory's score.
    """
    segment = trace if segment is None else segment
    if trace.reward is None or not segment.response_ids:
        return {}
    ends: dict[int, int] = {}  # by turn, the position of its last token in the loss
    for span in segment.spans:
        if span.kind is not SpanKind.CONTEXT:
            trained = [position for position in range(span.start, span.end) if segment.loss_mask[position]]
            ends.update({span.turn: trained[-1]} if trained else {})
    last = max(ends.values(), default=len(segment.response_ids) - 1)
    placed = {ends[turn]: earned for turn, earned in enumerate(trace.reward.turns) if earned and turn in ends}
    placed[last] = placed.get(last, 0.0) + trace.reward.score - sum(placed.values())
    return placed


def reward_extra_info(trace: Trace, parts: Sequence[str]) -> dict[str, float]:
    """Values that verl's validation averages in addition to the reward."""
    own = trace.reward.parts if trace.reward else {}
    return {
        "mcp_turns": float(len(trace.turns)),
        "mcp_tool_calls": float(trace.tool_calls),
        "mcp_tool_errors": float(trace.tool_errors),
        "mcp_truncated": float(trace.stop_reason is not None and trace.stop_reason.is_truncated),
        "mcp_penalty": trace.reward.penalty if trace.reward else 0.0,
        **{part: own.get(part, 0.0) for part in parts},
    }


def withdrawn_output(trace: Trace, parts: Sequence[str], *, pad_token_id: int) -> AgentLoopOutput:
    """One masked token without reward, for verl's v0 trainer, which needs an output for every row (v1 takes a list)."""
    unplayed = Trace.begin(trace.id, trace.task, trace.origin)
    unplayed.prompt_ids = trace.prompt_ids or [pad_token_id]
    (output,) = to_outputs(unplayed, parts, pad_token_id=pad_token_id)
    return output.model_copy(update={"num_turns": 0})
