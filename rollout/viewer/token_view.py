"""The texts of a model's tokens, and the tokens of a trajectory as columns for the page and as lines."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from mcp_rollout.rollout.tokens.chatml import SPECIAL
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.run_record import RunRecord, file_digest
from mcp_rollout.rollout.trace.segment import Segment
from mcp_rollout.rollout.trace.trained_segment import TrainedSegment, digest

TOKENIZER = "tokenizer.json"
_TRAINED = ("trainer", "ratio", "advantage", "push", "entropy")
"""`push` is advantage times (1 - probability), by how much the update could move the token's own logit."""


class TokenTexts(Protocol):
    """Texts of tokens. The text of a character that several tokens share is the last one's; the others' are empty."""

    note: str
    """What a reader of the texts has to know; empty where they are those that the engine saw."""

    def texts(self, ids: Sequence[int]) -> list[str]: ...


class IdsOnly:
    """No texts."""

    def __init__(self, note: str) -> None:
        self.note = note

    def texts(self, ids: Sequence[int]) -> list[str]:
        return [""] * len(ids)


class ByteTexts:
    """Texts of `rollout.tokens.chatml.ByteTokens`, with which scripted engines play."""

    note = ""

    def texts(self, ids: Sequence[int]) -> list[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return [decoder.decode(bytes([token])) if token < 256 else _special(token) for token in ids]


class TokenizerTexts:
    """Texts by the `tokenizers` library, which needs no torch.

    Args:
        path: of a `tokenizer.json`.

    Raises:
        ImportError: the library is not installed.
        ValueError: the file is not a tokenizer.
    """

    def __init__(self, path: Path, note: str = "") -> None:
        import tokenizers

        library: Any = tokenizers  # ships no types
        self.note = note
        try:
            self._tokenizer: Any = library.Tokenizer.from_file(str(path))
        except Exception as error:  # boundary of the library, which raises nothing narrower
            raise ValueError(f"{path} is not a tokenizer: {error}") from error

    def texts(self, ids: Sequence[int]) -> list[str]:
        from tokenizers.decoders import DecodeStream

        stream: Any = DecodeStream(skip_special_tokens=False)
        found: list[str] = []
        for token in ids:
            try:
                found.append(stream.step(self._tokenizer, token) or "")
            except Exception:  # boundary of the library: ids that continue no text, or that are not in the vocabulary
                stream = DecodeStream(skip_special_tokens=False)
                found.append(_single(self._tokenizer, token))
        return found


def token_texts(record: RunRecord | None, tokenizer: Path | None = None) -> TokenTexts:
    """The texts for the trajectories of a run.

    Args:
        record: of the run; None if it is missing.
        tokenizer: a model's directory, or its `tokenizer.json`, in place of the recorded one.
    """
    if tokenizer is not None:
        return _loaded(tokenizer / TOKENIZER if tokenizer.is_dir() else tokenizer, None)
    if record is None:
        return IdsOnly("The run record is missing, so texts of tokens are not known: give --tokenizer.")
    if not record.model:
        return ByteTexts()
    path = _file_of(str(record.model.get("path", "")))
    digests: dict[str, str] = record.model.get("sha256") or {}
    return _loaded(path, digests.get(TOKENIZER))


def _loaded(path: Path, digest: str | None) -> TokenTexts:
    changed = digest is not None and path.is_file() and file_digest(path) != digest
    note = "The tokenizer's file has changed since the run, so texts may be wrong." if changed else ""
    try:
        if not path.is_file():
            return IdsOnly(f"There is no {path}, so texts of tokens are not known: give --tokenizer.")
        return TokenizerTexts(path, note)
    except ImportError:
        return IdsOnly("Texts of tokens need the package `tokenizers`: pip install tokenizers.")
    except ValueError as error:
        return IdsOnly(str(error))


def _file_of(model: str) -> Path:
    """The tokenizer of a model's directory, or of a model in Hugging Face's cache; asks no network."""
    if Path(model).is_dir():
        return Path(model) / TOKENIZER
    try:
        from huggingface_hub import try_to_load_from_cache

        found: Any = try_to_load_from_cache(model, TOKENIZER)
    except (ImportError, ValueError):
        found = None
    return Path(found) if isinstance(found, str) else Path(model) / TOKENIZER


def _single(tokenizer: Any, token: int) -> str:
    try:
        return tokenizer.decode([token], skip_special_tokens=False)
    except Exception:  # boundary of the library: an id that is not a number of its
        return ""


def _special(token: int) -> str:
    return SPECIAL[token - 256] if token - 256 < len(SPECIAL) else ""


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


def token_lines(trace: Trace, texts: TokenTexts, trained: Iterable[TrainedSegment]) -> Iterator[str]:
    """A header, and a line for each token of the responses; turns are counted from 1. Arguments as of `tokens_view`."""
    segments: list[dict[str, Any]] = tokens_view(trace, texts, trained, unit="")["segments"]
    computed: list[dict[str, Any]] = [each["trained"] for each in segments if each["trained"]]
    head = [f"withdrawn: {trace.failure.kind if trace.failure else trace.stop_reason}"] if trace.is_withdrawn else []
    head += dict.fromkeys(f"step {each['step']}" for each in computed)
    head += dict.fromkeys(f"dropped: {each['dropped']}" for each in computed if each["dropped"])
    yield " ".join([trace.id, *head])
    columns = " ".join(f"{name:>10}" for name in ("logprob", *(_TRAINED if computed else ())))
    yield f"{'segment':>7} {'position':>8} {'turn':>4} {'kind':<10} {'loss':>4} {'id':>8} {columns}  text"
    for segment in segments:
        ids, shown = (segment[name][segment["prompt"] :] for name in ("ids", "texts"))
        for kind, turn, start, end in segment["spans"]:
            for position in range(start, end):
                numbers = [segment["logprobs"][position], *(_computed(segment, position) if computed else ())]
                place = f"{segment['number']:>7} {position:>8} {turn + 1:>4} {kind:<10} {segment['mask'][position]:>4}"
                cells = " ".join(" " * 10 if number is None else f"{number:>10.5f}" for number in numbers)
                text = json.dumps(shown[position], ensure_ascii=False) if shown[position] else ""
                yield f"{place} {ids[position]:>8} {cells}  {text}".rstrip()


def _computed(segment: dict[str, Any], position: int) -> list[float | None]:
    """The trainer's numbers of one token, in the order of the columns; None if it was not trained on."""
    trained = segment["trained"]
    if trained is None or position >= len(trained["mask"]) or not trained["mask"][position]:
        return [None] * len(_TRAINED)
    names = ("trainer", "sampled", "advantage", "entropy")
    trainer, sampled, advantage, entropy = (trained[name] and trained[name][position] for name in names)
    ratio = None if sampled is None else math.exp(trainer - sampled)
    return [trainer, ratio, advantage, advantage * (1 - math.exp(min(0.0, trainer))), entropy]
