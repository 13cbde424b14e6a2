"""Conversion of traces to the rows that AReaL trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch

from mcp_rollout.rollout.trace.record import Segment, Trace

NOT_SAMPLED = -1
"""The version of a token that was not sampled."""
_EPSILON = 1e-6


@dataclass(kw_only=True, slots=True)
class Sample:
    """One training sample: prompt and response of a segment, up to its last token in the loss.

    AReaL gives a sample's reward to its last token and passes it on to the tokens in the loss before it. If the last
    token is masked, the reward is lost, so masked tokens at the end are left out.
    """

    ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]  # 0.0 where not sampled
    versions: list[int]


def samples_of(trace: Trace) -> list[Sample]:
    """The training samples of a trajectory: one for each segment of its context that has a token in the loss."""
    return [_sample(trace, segment) for segment in trace.segments if segment.is_in_loss]


def _sample(trace: Trace, segment: Segment) -> Sample:
    before = len(segment.prompt_ids)
    end = len(segment.loss_mask) - segment.loss_mask[::-1].index(1)
    return Sample(
        ids=segment.prompt_ids + segment.response_ids[:end],
        loss_mask=[0] * before + segment.loss_mask[:end],
        logprobs=[0.0] * before + segment.logprobs[:end],
        versions=[NOT_SAMPLED] * before + _token_versions(trace, segment)[:end],
    )


def _token_versions(trace: Trace, segment: Segment) -> list[int]:
    """The version of each response token. A stored trace may lack it: its turn's first, or the step's stands in."""
    found, known = [NOT_SAMPLED] * len(segment.response_ids), trace.versions(segment)
    for span in segment.spans:
        if span.kind.is_sampled:
            first, _ = trace.turns[span.turn].weights_version
            otherwise = trace.origin.step if first is None else first
            own = known[span.start : span.end]
            found[span.start : span.end] = [otherwise if version is None else version for version in own]
    return found


def group_advantages(scores: Sequence[float]) -> list[float]:
    """GRPO's advantages of a group's trajectories: by how many standard deviations each differs from the mean.

    A group of one has no baseline and keeps its score. The standard deviation is the sample's, as in verl.
    """
    if len(scores) < 2:
        return list(scores)
    mean, deviation = fmean(scores), stdev(scores)
    return [(score - mean) / (deviation + _EPSILON) for score in scores]


def to_tensors(samples: Sequence[Sample], rewards: Sequence[float]) -> dict[str, Any]:
    """AReaL's trajectory of these samples, padded on the right to the longest.

    Returns:
        `input_ids`, `loss_mask`, `versions` int32, `logprobs` float32 and `attention_mask` bool, [samples, length];
        `rewards` float32, [samples].
    """
    length = max(len(sample.ids) for sample in samples)

    def padded(rows: Sequence[Sequence[float]], dtype: torch.dtype, value: float = 0) -> torch.Tensor:
        return torch.tensor([[*row, *[value] * (length - len(row))] for row in rows], dtype=dtype)

    return {
        "input_ids": padded([sample.ids for sample in samples], torch.int32),
        "loss_mask": padded([sample.loss_mask for sample in samples], torch.int32),
        "logprobs": padded([sample.logprobs for sample in samples], torch.float32),
        "versions": padded([sample.versions for sample in samples], torch.int32, NOT_SAMPLED),
        "attention_mask": padded([[1] * len(sample.ids) for sample in samples], torch.bool),
        "rewards": torch.tensor(rewards, dtype=torch.float32),
    }
