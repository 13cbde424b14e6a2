"""The tokens of a trajectory as columns for the page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rollout.trace.record import Trace
from rollout.trace.segment import Segment
from rollout.trace.trained import TrainedSegment, digest
from rollout.viewer.token_texts import TokenTexts


def tokens_view(trace: Trace, texts: TokenTexts, trained: Iterable[TrainedSegment], *, unit: str) -> dict[str, Any]:
    """The segments' tokens, each list with a value for each token of prompt and response.

    Args:
        trained: what a trainer computed on this trace; of several records of a segment the last counts.
        unit: what the ids stand for; only `tokens` are in a loss.
    """
    latest = {each.segment: each for each in trained}
    segments = [
        _segment(number, segment, trace, texts, latest.get(number)) | {"unit": unit}
        for number, segment in enumerate((*trace.earlier, trace))
    ]
    return {"id": trace.id, "note": texts.note, "segments": segments}


def _segment(
    number: int, segment: Segment, trace: Trace, texts: TokenTexts, trained: TrainedSegment | None
) -> dict[str, Any]:
    ids = [*segment.prompt_ids, *segment.response_ids]
    logprobs: list[float | None] = [None] * len(segment.response_ids)
    for span in segment.spans:
        if span.kind.is_sampled and trace.has_logprobs:
            logprobs[span.start : span.end] = map(_short, segment.logprobs[span.start : span.end])
    return {
        "number": number,
        "prompt": len(segment.prompt_ids),
        "ids": ids,
        "texts": texts.texts(ids),
        "mask": segment.loss_mask,
        "spans": [[str(span.kind), span.turn, span.start, span.end] for span in segment.spans],
        "logprobs": logprobs,
        "trained": _trained(segment, trained) if trained is not None else None,
    }


def _trained(segment: Segment, trained: TrainedSegment) -> dict[str, Any]:
    """What the trainer computed, null where a token was not trained on."""
    ids = trained.ids_digest
    numbers = {
        "trainer": trained.trainer_logprobs,
        "sampled": trained.sampled_logprobs,
        "advantage": trained.advantages,
        "entropy": trained.entropy,
    }
    return {
        "step": trained.step,
        "dropped": trained.dropped,
        "is_same": ids is None or ids == digest(segment.prompt_ids, segment.response_ids),
        "mask": [int(flag) for flag in trained.mask],
    } | {
        name: None
        if not values
        else [_short(value) if flag else None for flag, value in zip(trained.mask, values, strict=False)]
        for name, values in numbers.items()
    }


def _short(value: float) -> float:
    """Six significant digits: the stored numbers have seven."""
    return float(f"{value:.6g}")
