"""What AReaL trains on, from traces of conversations with thinking, tools, users, cut turns and several segments."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from thinking_game import play
from worlds import task

from mcp_rollout.rollout.areal.samples import NOT_SAMPLED, Sample, group_advantages, samples_of, to_tensors
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import Segment, Span, SpanKind, Trace, Turn
from mcp_rollout.rollout.types import Attempt, FinishReason

pytestmark = pytest.mark.anyio


async def played(directory: Path, **thinking: Any) -> tuple[Trace, list[dict[str, Any]]]:
    tokens = ByteTokens()
    return await play(directory, tokens, tokens.encode, stop=IM_END, thinking=thinking)


def updated(trace: Trace, chance: random.Random) -> list[int]:
    """Record a weight update during each turn, at some token; returns the versions of all of them."""
    for number, turn in enumerate(trace.turns):
        cut = chance.randint(0, turn.sampled)
        turn.attempts = [
            Attempt(tokens=cut, weights_version=number),
            Attempt(tokens=turn.sampled - cut, weights_version=number + 1),
        ]
    return [version for turn in trace.turns for version in turn.versions if version is not None]


def turn(*versions: int, first: int | None = None) -> Turn:
    """A turn with these versions of its sampled ids, as far as they are known."""
    attempts = [Attempt(tokens=1, weights_version=version) for version in versions]
    sampled = {"finish_reason": FinishReason.STOP, "sampled": len(versions) or 2}
    return Turn(content="", thinking="", begins_at=0, attempts=attempts, weights_version=(first, None), **sampled)


@pytest.mark.parametrize("context", ["keep", "drop_previous"])
@pytest.mark.parametrize("loss", ["keep", "mask"])
async def test_every_token_has_what_the_trace_and_the_engine_have_for_it(
    tmp_path: Path, context: str, loss: str
) -> None:
    trace, log = await played(tmp_path, context=context, loss=loss)
    versions = updated(trace, random.Random(0))
    samples = samples_of(trace)
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
    assert [version for _, _, version in found] == versions


async def test_masked_tokens_at_the_end_are_left_out() -> None:
    """AReaL puts the reward on a row's last token, and drops it where that token is masked."""
    segment = Segment(prompt_ids=[1, 2])
    segment.add_span(SpanKind.COMPLETION, 0, [3, 4], [-0.1, -0.2], in_loss=True)
    segment.add_span(SpanKind.CONTEXT, 0, [5])
    segment.add_span(SpanKind.COMPLETION, 1, [6, 7], [-0.3, -0.4])
    trace = Trace.begin("t", task(), Origin())
    for name in ("prompt_ids", "response_ids", "loss_mask", "logprobs", "spans"):
        setattr(trace, name, getattr(segment, name))
    trace.turns = [turn(8, 9), turn(9, 9)]
    assert samples_of(trace) == [
        Sample(ids=[1, 2, 3, 4], loss_mask=[0, 0, 1, 1], logprobs=[0.0, 0.0, -0.1, -0.2], versions=[-1, -1, 8, 9])
    ]
    trace.mask()
    assert samples_of(trace) == []


def test_tokens_that_a_template_removed_have_no_version() -> None:
    segment = Trace.begin("t", task(), Origin())
    segment.prompt_ids = [1]
    segment.add_span(SpanKind.THINKING, 0, [2, 3], [-0.1, -0.2], in_loss=True)
    segment.add_span(SpanKind.FORCED, 0, [4])
    segment.add_span(SpanKind.COMPLETION, 0, [5, 6, 7], [-0.3, -0.4, -0.5], in_loss=True)
    segment.trim(1)
    assert segment.spans[-1] == Span(kind=SpanKind.COMPLETION, turn=0, start=3, end=5)
    segment.turns = [turn(1, 1, 1, 2, 2)]
    (sample,) = samples_of(segment)
    assert sample.versions == [-1, 1, 1, -1, 1, 2]


def test_a_stored_turn_without_versions_has_its_first_or_its_steps() -> None:
    trace = Trace.begin("t", task(), Origin(step=4))
    trace.prompt_ids, trace.turns = [1], [turn(first=3), turn()]
    for number in range(2):
        trace.add_span(SpanKind.COMPLETION, number, [2, 3], [-0.1, -0.2], in_loss=True)
    (sample,) = samples_of(trace)
    assert sample.versions == [-1, 3, 3, 4, 4]


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
