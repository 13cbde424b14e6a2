"""A trace as verl's `AgentLoopOutput`s, with the same keys for every outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from rollout.tokens.images import DecodedImages
from rollout.trace.record import Segment, Trace
from rollout.verl.dense import DenseOutput, reward_by_position


def to_outputs(trace: Trace, parts: Sequence[str], *, pad_token_id: int = 0) -> list[AgentLoopOutput]:
    """The training samples of a trajectory that was played: one, or one for each segment of its context.

    verl gives all of them the reward of the last, and GRPO the advantage that it finds on the last one's tokens; so a
    segment without a token in the loss is left out, unless there is no other.

    Args:
        parts: names of the reward parts of every environment of the run, so that all samples have the same keys.
        pad_token_id: stands, masked, in the response of a policy that never sampled a token.
    """
    played = trace.segments
    samples = [segment for segment in played if segment.is_in_loss] or played[-1:]
    if not samples:
        void = Segment(prompt_ids=trace.prompt_ids, response_ids=[pad_token_id], loss_mask=[0], logprobs=[0.0])
        return [_output(trace, void, range(len(trace.turns)), parts)]
    return [_output(trace, segment, segment.turns_sampled, parts) for segment in samples]


def _output(trace: Trace, segment: Segment, numbers: Iterable[int], parts: Sequence[str]) -> AgentLoopOutput:
    """One training sample, in which the turns of these numbers were sampled."""
    turns = [trace.turns[number] for number in numbers]
    versions = [version for turn in turns for version in turn.weights_version if version is not None]
    return DenseOutput(
        prompt_ids=segment.prompt_ids,
        response_ids=segment.response_ids,
        response_mask=segment.loss_mask,
        response_logprobs=segment.logprobs if trace.has_logprobs else None,
        multi_modal_data={"images": DecodedImages(trace.messages).first(segment.images)} if segment.images else {},
        mm_processor_kwargs={},
        reward_score=trace.reward.score if trace.reward else 0.0,
        reward_at=reward_by_position(trace, segment),
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
        },
    )


def reward_extra_info(trace: Trace, parts: Sequence[str]) -> dict[str, float]:
    """What verl's validation averages beside the reward."""
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
    """One masked token, for verl's v0 trainer, which needs an output for every row (v1 takes an empty list)."""
    return AgentLoopOutput(
        prompt_ids=trace.prompt_ids or [pad_token_id],
        response_ids=[pad_token_id],
        response_mask=[0],
        response_logprobs=[0.0],
        multi_modal_data={},
        mm_processor_kwargs={},
        reward_score=0.0,
        num_turns=0,
        metrics=AgentLoopMetrics(),
        extra_fields={
            "turn_scores": [],
            "tool_rewards": [],
            "min_global_steps": None,
            "max_global_steps": None,
            "reward_extra_info": dict.fromkeys(reward_extra_info(trace, parts), 0.0),
        },
    )
