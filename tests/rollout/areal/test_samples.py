"""What AReaL trains on, from traces of conversations with thinking, tools, users, cut turns and several segments."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from thinking_game import play
from worlds import task

from rollout.areal.samples import NOT_SAMPLED, Sample, group_advantages, samples_of, to_tensors
from rollout.environment.task import Origin
from rollout.tokens.chatml import IM_END, ByteTokens
from rollout.trace.record import Segment, Span, SpanKind, Trace

pytestmark = pytest.mark.anyio


async def played(directory: Path, **thinking: Any) -> tuple[Trace, list[dict[str, Any]]]:
    tokens = ByteTokens()
    return await play(directory, tokens, tokens.encode, stop=IM_END, thinking=thinking)


def versions_of(trace: Trace, chance: random.Random) -> dict[int, list[int]]:
    """A weight update during each turn, at some token."""
    found: dict[int, list[int]] = {}
    for number, turn in enumerate(trace.turns):
        cut = chance.randint(0, turn.sampled)
        found[number] = [number] * cut + [number + 1] * (turn.sampled - cut)
    return found


@pytest.mark.parametrize("context", ["keep", "drop_previous"])
@pytest.mark.parametrize("loss", ["keep", "mask"])
async def test_every_token_has_what_the_trace_and_the_engine_have_for_it(
    tmp_path: Path, context: str, loss: str
) -> None:
    trace, log = await played(tmp_path, context=context, loss=loss)
    versions = versions_of(trace, random.Random(0))
    samples = samples_of(trace, versions)
    assert len(samples) == len(trace.segments) and (len(samples) > 1) == (context == "drop_previous")
    sampled = [
        (token, logprob) for each in log for token, logprob in zip(each["token_ids"], each["log_probs"], strict=True)
    ]
    found: list[tuple[int, float, int]] = []
    for sample, segment in zip(samples, trace.segments, strict=True):
        assert len(sample.ids) == len(sample.loss_mask) == len(sample.logprobs) == len(sample.versions)
        assert sample.ids == (segment.prompt_ids + segment.response_ids)[: len(sample.ids)]
        assert sample.loss_mask[: len(segment.prompt_ids)] == [0] * len(segment.prompt_ids)
        found += [
            (token, logprob, version)
            for token, logprob, version in zip(sample.ids, sample.logprobs, sample.versions, strict=True)
            if version != NOT_SAMPLED
        ]
        assert all(
            version != NOT_SAMPLED for version, kept in zip(sample.versions, sample.loss_mask, strict=True) if kept
        )
    assert [(token, logprob) for token, logprob, _ in found] == sampled
    assert [version for _, _, version in found] == [version for turn in versions.values() for version in turn]


async def test_masked_tokens_at_the_end_are_left_out() -> None:
    """AReaL puts the reward on a row's last token, and drops it where that token is masked."""
    segment = Segment(prompt_ids=[1, 2])
    segment.add_span(SpanKind.COMPLETION, 0, [3, 4], [-0.1, -0.2], in_loss=True)
    segment.add_span(SpanKind.CONTEXT, 0, [5])
    segment.add_span(SpanKind.COMPLETION, 1, [6, 7], [-0.3, -0.4])
    trace = Trace.begin("t", task(), Origin())
    for name in ("prompt_ids", "response_ids", "loss_mask", "logprobs", "spans"):
        setattr(trace, name, getattr(segment, name))
    assert samples_of(trace, {0: [8, 9], 1: [9, 9]}) == [
        Sample(ids=[1, 2, 3, 4], loss_mask=[0, 0, 1, 1], logprobs=[0.0, 0.0, -0.1, -0.2], versions=[-1, -1, 8, 9])
    ]
    trace.mask()
    assert samples_of(trace, {0: [8, 9], 1: [9, 9]}) == []


def test_tokens_that_a_template_removed_have_no_version() -> None:
    segment = Trace.begin("t", task(), Origin())
    segment.prompt_ids = [1]
    segment.add_span(SpanKind.THINKING, 0, [2, 3], [-0.1, -0.2], in_loss=True)
    segment.add_span(SpanKind.FORCED, 0, [4])
    segment.add_span(SpanKind.COMPLETION, 0, [5, 6, 7], [-0.3, -0.4, -0.5], in_loss=True)
    segment.trim(1)
    assert segment.spans[-1] == Span(kind=SpanKind.COMPLETION, turn=0, start=3, end=5)
    (sample,) = samples_of(segment, {0: [1, 1, 1, 2, 2]})
    assert sample.versions == [-1, 1, 1, -1, 1, 2]


def test_advantages_are_those_of_the_literature() -> None:
    scores = [0.0, 1.0, 1.0, 0.25]
    values = torch.tensor(scores)
    expected = (values - values.mean()) / (values.std() + 1e-6)
    assert group_advantages(scores) == pytest.approx(expected.tolist())
    assert group_advantages([0.5, 0.5, 0.5]) == [0.0, 0.0, 0.0]
    assert group_advantages([0.7]) == [0.7]


def test_rows_are_padded_on_the_right_and_padding_is_not_attended() -> None:
    samples = [
        Sample(ids=[1, 2, 3], loss_mask=[0, 1, 1], logprobs=[0.0, -1.0, -2.0], versions=[-1, 4, 5]),
        Sample(ids=[1, 2], loss_mask=[0, 1], logprobs=[0.0, -1.5], versions=[-1, 4]),
    ]
    tensors = to_tensors(samples, [0.5, -0.5])
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()} == {
        "input_ids": (torch.int32, (2, 3)),
        "loss_mask": (torch.int32, (2, 3)),
        "logprobs": (torch.float32, (2, 3)),
        "versions": (torch.int32, (2, 3)),
        "attention_mask": (torch.bool, (2, 3)),
        "rewards": (torch.float32, (2,)),
    }
    assert tensors["attention_mask"].tolist() == [[True, True, True], [True, True, False]]
    assert tensors["versions"].tolist() == [[-1, 4, 5], [-1, 4, -1]]
    assert tensors["loss_mask"].tolist() == [[0, 1, 1], [0, 1, 0]]
