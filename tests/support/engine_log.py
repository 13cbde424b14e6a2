"""An engine's own log against traces and training batches, position by position.

This file imports nothing of the project: it reads the log, the journal and the trainer's files as they are on disk,
and a batch as the tensors that verl has. It takes no word of the record for where a generation is in a sample: it finds
the log's own ids there.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Generation = dict[str, Any]
"""A line of the log: `prompt_ids`, `token_ids`, `log_probs`, and `weights_version` [first, last] where it is known."""
SAMPLE_KEYS = ("prompt_ids", "response_ids", "loss_mask", "logprobs", "spans")


@dataclass(kw_only=True, slots=True)
class Sample:
    """A training sample, as a record or a batch has it."""

    trajectory: str
    number: int
    """Of the segment in its trajectory, counted from 0."""
    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]  # [len(response_ids)]
    logprobs: list[float] | None  # [len(response_ids)], 0.0 where nothing was sampled; None if the engine gave none
    versions: list[int] | None = None  # [len(response_ids)], -1 where nothing was sampled or it is not known
    rewards: list[float] | None = None
    """By token of the response, of a batch; the score alone, of a record."""
    relatives: frozenset[str] = frozenset()
    """Trajectories of whose beginnings, in a tree, this one's may be a part."""
    shared: int = 0
    """Ids that it may share with them, from its first one on."""
    is_last: bool = True
    """Whether the trajectory has no later sample."""


@dataclass(kw_only=True)
class Found:
    """Counts over all samples. Of what is different, all must be 0."""

    samples: int = 0
    positions: int = 0
    sampled: int = 0
    """Positions that the engine sampled."""
    ids: int = 0
    masks: int = 0
    logprobs: int = 0
    versions: int = 0
    rewards: int = 0
    lengths: int = 0
    """Columns that are longer or shorter than the response."""
    twice: int = 0
    """Generations in several samples that are not of one tree."""
    left: list[Generation] = field(default_factory=list)
    """Generations in no sample, with something that should be in the loss."""

    @property
    def differences(self) -> dict[str, int]:
        """The counts that are not 0, by name."""
        counts = {name: value for name, value in vars(self).items() if name not in ("samples", "positions", "sampled")}
        counts["left"] = len(self.left)
        return {name: count for name, count in counts.items() if count}


def compare(
    log: Sequence[Generation],
    samples: Iterable[Sample],
    *,
    in_loss: Callable[[Generation], Sequence[bool]] = lambda generation: [True] * len(generation["token_ids"]),
    stands_in: frozenset[int] = frozenset(),
    scores: Mapping[str, float] | None = None,
    tolerance: float = 0.0,
) -> Found:
    """Count what differs between samples and the log.

    Every position of a prompt and of a response is compared up to the last one that the engine was given or sampled;
    what follows it must be out of the loss. Log-probabilities are compared as float32, which is what batches have.

    Args:
        in_loss: of each sampled id, whether it belongs into the loss. A generation without one may be in no sample.
        stands_in: ids that a policy stops at and that open the next message as well. Where a conversation goes on
            after one, it is the message's, not the policy's.
        scores: of each trajectory, with which the samples' rewards are compared.
        tolerance: of log-probabilities and rewards.
    """
    found, matching = Found(), _Matching(log, stands_in)
    ordered = sorted(samples, key=lambda sample: (sample.shared, sample.trajectory, sample.number))
    placed = [matching.exact(sample) for sample in ordered]
    for sample, places in zip(ordered, placed, strict=True):
        matching.nearly(sample, places)
    for sample, places in zip(ordered, placed, strict=True):
        _count(found, sample, places, in_loss, tolerance)
        if scores is not None:
            found.rewards += _misplaced(sample, scores[sample.trajectory], tolerance)
    found.twice = matching.twice
    found.left = [each for _, each in matching.unused() if any(in_loss(each))]
    return found


@dataclass(slots=True)
class _Place:
    """Where a generation is in a sample, counted from its first id."""

    begin: int
    end: int
    generation: Generation


class _Matching:
    def __init__(self, log: Sequence[Generation], stands_in: frozenset[int]) -> None:
        self._log = [each for each in log if each["token_ids"]]
        self._stands_in = stands_in
        self._by_prompt: dict[bytes, list[int]] = {}
        for number, each in enumerate(self._log):
            self._by_prompt.setdefault(_packed(each["prompt_ids"]), []).append(number)
        self._lengths = sorted({len(each["prompt_ids"]) for each in self._log})
        self._owners: dict[int, set[str]] = {}
        """By number of a generation, the trajectories that have it."""
        self.twice = 0

    def unused(self) -> Iterator[tuple[int, Generation]]:
        return ((number, each) for number, each in enumerate(self._log) if number not in self._owners)

    def exact(self, sample: Sample) -> list[_Place]:
        """The generations whose prompts and ids are in the sample, in their order."""
        whole = sample.prompt_ids + sample.response_ids
        packed, size = _packed(whole), array("i").itemsize
        places: list[_Place] = []
        for begin in self._lengths[bisect_left(self._lengths, len(sample.prompt_ids)) :]:
            if begin >= len(whole):
                break
            if places and begin < places[-1].end:
                continue
            candidates = [
                (number, end)
                for number in self._by_prompt.get(packed[: begin * size], ())
                if (end := self._end(whole, begin, self._log[number]["token_ids"])) is not None
            ]
            if candidates:
                number, end = min(candidates, key=lambda each: self._rank(sample, begin, *each))
                self._own(sample, number, begin, end)
                places.append(_Place(begin, end, self._log[number]))
        for at, place in enumerate(places):
            is_end = at == len(places) - 1 and sample.is_last
            if not is_end and place.generation["token_ids"][-1] in self._stands_in:
                place.end = place.begin + len(place.generation["token_ids"]) - 1
        return places

    def nearly(self, sample: Sample, places: list[_Place]) -> None:
        """Add generations that are in no sample, and that this one has with fewer than half of their ids wrong."""
        whole, base = sample.prompt_ids + sample.response_ids, len(sample.prompt_ids)
        for number, each in self.unused():
            read, said = each["prompt_ids"], each["token_ids"]
            begin, end = len(read), len(read) + len(said)
            if begin < base or end > len(whole):
                continue
            if any(place.begin < end and begin < place.end for place in places):
                continue
            wrong_said = sum(one != other for one, other in zip(whole[begin:end], said, strict=True))
            wrong_read = sum(one != other for one, other in zip(whole, read, strict=False))
            if (
                2 * wrong_said < len(said)
                and 2 * wrong_read < len(read)
                and any(sample.mask[begin - base : end - base])
            ):
                self._owners[number] = {sample.trajectory}
                places.append(_Place(begin, end, each))
        places.sort(key=lambda place: place.begin)

    def _end(self, whole: list[int], begin: int, said: list[int]) -> int | None:
        end = begin + len(said)
        if whole[begin:end] == said:
            return end
        return end - 1 if said[-1] in self._stands_in and whole[begin : end - 1] == said[:-1] else None

    def _rank(self, sample: Sample, begin: int, number: int, end: int) -> tuple[bool, bool, int]:
        """Siblings may have sampled the same ids, with log-probabilities that differ by a rounding."""
        start, logprobs = begin - len(sample.prompt_ids), self._log[number]["log_probs"]
        own = None if sample.logprobs is None else sample.logprobs[start : start + end - begin]
        is_other = own is not None and logprobs is not None and _single(own) != _single(logprobs[: end - begin])
        return not self._is_free(sample, number, end), is_other, begin - end

    def _is_free(self, sample: Sample, number: int, end: int) -> bool:
        owners = self._owners.get(number, set())
        return sample.trajectory not in owners and (
            not owners or (bool(owners & sample.relatives) and end <= sample.shared)
        )

    def _own(self, sample: Sample, number: int, begin: int, end: int) -> None:
        base = len(sample.prompt_ids)
        if not self._is_free(sample, number, end) and any(sample.mask[begin - base : end - base]):
            self.twice += 1
        self._owners.setdefault(number, set()).add(sample.trajectory)


def _count(
    found: Found,
    sample: Sample,
    places: Sequence[_Place],
    in_loss: Callable[[Generation], Sequence[bool]],
    tolerance: float,
) -> None:
    whole, base, length = sample.prompt_ids + sample.response_ids, len(sample.prompt_ids), len(sample.response_ids)
    mask, logprobs, versions = [0] * length, [0.0] * length, [-1] * length
    wrong: set[int] = set()
    for place in places:
        generation, own = place.generation, slice(place.begin - base, place.end - base)
        count = place.end - place.begin
        said = generation["prompt_ids"] + generation["token_ids"][:count]
        wrong.update(at for at, (one, other) in enumerate(zip(whole, said, strict=False)) if one != other)
        mask[own] = map(int, in_loss(generation)[:count])
        logprobs[own] = (generation["log_probs"] or [0.0] * len(generation["token_ids"]))[:count]
        first, last = generation.get("weights_version") or (None, None)
        versions[own] = [first if first is not None and first == last else -1] * count
        found.sampled += count
    found.samples += 1
    found.positions += len(whole)
    found.ids += len(wrong)
    columns: list[Sequence[Any] | None] = [sample.mask, sample.logprobs, sample.versions]
    found.lengths += sum(column is not None and len(column) != length for column in columns)
    found.masks += sum(one != other for one, other in zip(sample.mask, mask, strict=False))
    if sample.logprobs is not None:
        pairs = zip(_single(sample.logprobs), _single(logprobs), strict=False)
        found.logprobs += sum(not abs(one - other) <= tolerance for one, other in pairs)
    known = [(at, version) for at, version in enumerate(versions) if version != -1]
    if sample.versions is not None:
        found.versions += sum(sample.versions[at] != version for at, version in known)


def _misplaced(sample: Sample, score: float, tolerance: float) -> bool:
    """Whether a sample's rewards are not the score, or in a batch stand on tokens that are out of the loss."""
    rewards = sample.rewards or []
    is_batch = len(rewards) == len(sample.mask) > 1
    beside = (
        is_batch
        and 1 in sample.mask
        and any(earned for earned, own in zip(rewards, sample.mask, strict=True) if not own)
    )
    return beside or not abs(sum(rewards) - score) <= max(tolerance, 1e-6 * max(1.0, abs(score)))


def _packed(ids: Sequence[int]) -> bytes:
    return array("i", ids).tobytes()


def _single(values: Sequence[float]) -> list[float]:
    return array("f", values).tolist()


# What is compared: the log, records of a journal or an archive, a batch, and the trainer's files.


def read_generations(path: Path) -> list[Generation]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_records(directory: Path) -> list[dict[str, Any]]:
    return [plain_record(line) for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]


def plain_record(line: str | bytes) -> dict[str, Any]:
    """A journal's line, with the log-probabilities as numbers."""
    record = json.loads(line)
    for segment in (*record["earlier"], record):
        parts = [base64.b64decode(text) for text in segment["logprobs"]]
        words = [part[index :: len(part) // 4] for part in parts for index in range(len(part) // 4)]
        segment["logprobs"] = [number for word in words for number in struct.unpack("<f", word)]
    return record


def samples_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """A trajectory's training samples as records of their own, each with the turns that were sampled in it."""
    samples: list[dict[str, Any]] = []
    for segment in [*record["earlier"], record]:
        numbers = {span["turn"] for span in segment["spans"] if span["kind"] in ("thinking", "completion")}
        turns = [record["turns"][number] for number in sorted(numbers)]
        if turns:
            samples.append({key: segment[key] for key in SAMPLE_KEYS} | {"turns": turns})
    return samples


def recorded(records: Iterable[Mapping[str, Any]]) -> list[Sample]:
    """The samples of a journal's records."""
    kept = list(records)
    trees = _relatives({each["id"]: each["origin"]["parent"] for each in kept})
    return [
        Sample(
            trajectory=record["id"],
            number=number,
            prompt_ids=segment["prompt_ids"],
            response_ids=segment["response_ids"],
            mask=segment["loss_mask"],
            logprobs=segment["logprobs"] if record["has_logprobs"] else None,
            rewards=[record["reward"]["score"]] if record["reward"] else [],
            relatives=trees[record["id"]],
            shared=record["origin"]["branched_at"] or 0,
            is_last=segment is record,
        )
        for record in kept
        for number, segment in enumerate([*record["earlier"], record])
    ]


def exported(path: Path) -> list[Sample]:
    """The samples of an export, from the columns of docs/schemas/columns.txt."""
    import pyarrow.parquet as pq

    columns = ["id", "parent", "branched_at", "reward", "has_logprobs", "segments"]
    rows = pq.read_table(path, columns=columns).to_pylist()
    trees = _relatives({row["id"]: row["parent"] for row in rows})
    return [
        Sample(
            trajectory=row["id"],
            number=number,
            prompt_ids=segment["prompt_ids"],
            response_ids=segment["response_ids"],
            mask=segment["loss_mask"],
            logprobs=segment["logprobs"] if row["has_logprobs"] else None,
            rewards=[] if row["reward"] is None else [row["reward"]],
            relatives=trees[row["id"]],
            shared=row["branched_at"] or 0,
            is_last=number == len(row["segments"]) - 1,
        )
        for row in rows
        for number, segment in enumerate(row["segments"])
    ]


def batched(rows: Iterable[Mapping[str, Any]], records: Iterable[Mapping[str, Any]]) -> list[Sample]:
    """The samples of verl's batch.

    Args:
        rows: The tensors of each sample by the names that verl gives them, and its `extra_fields`.
        records: Of the trajectories, for what no batch has: which of them are a tree.
    """
    of_record = {(each.trajectory, each.number): each for each in recorded(records)}
    samples: list[Sample] = []
    for row in rows:
        known = of_record[row["extra_fields"]["mcp_trace"], row["extra_fields"]["mcp_segment"]]
        logprobs, versions = row.get("rollout_log_probs"), row.get("mcp_versions")
        samples.append(
            Sample(
                trajectory=known.trajectory,
                number=known.number,
                prompt_ids=row["prompts"].tolist(),
                response_ids=row["responses"].tolist(),
                mask=row["response_mask"].tolist(),
                logprobs=None if logprobs is None else logprobs.tolist(),
                versions=None if versions is None else versions.tolist(),
                rewards=row["rm_scores"].tolist(),
                relatives=known.relatives,
                shared=known.shared,
                is_last=known.is_last,
            )
        )
    return samples


def scores_of(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The score of each trajectory; 0 without one."""
    return {each["id"]: each["reward"]["score"] if each["reward"] else 0.0 for each in records}


def read_trained_rows(directory: Path) -> list[dict[str, Any]]:
    """What a trainer wrote beside the traces of each sample; numbers are those of the tokens in the loss alone."""
    import pyarrow.parquet as pq

    files = sorted(directory.glob("trained/*.parquet"))
    return [row for path in files for row in pq.read_table(path).to_pylist()]


def trained_differences(rows: Sequence[Mapping[str, Any]], records: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Samples that a trainer had otherwise than the records, by what differs.

    A sample with something in the loss that it never had is `missing`.
    """
    samples = {(each.trajectory, each.number): each for each in recorded(records)}
    found: dict[str, int] = dict.fromkeys(("unknown", "dropped", "ids", "masks", "logprobs"), 0)
    for row in rows:
        sample = samples.get((row["trace"], row["segment"]))
        if sample is None or row["dropped"] is not None:
            found["unknown" if sample is None else "dropped"] += 1
        else:
            in_loss = [bool(bit) for bit in sample.mask]
            own = [value for value, bit in zip(_single(sample.logprobs or []), in_loss, strict=False) if bit]
            found["ids"] += row["ids_digest"] != _digest(sample)
            found["masks"] += row["mask"] != in_loss
            found["logprobs"] += row["sampled_logprobs"] is not None and row["sampled_logprobs"] != own
    had = {(row["trace"], row["segment"]) for row in rows}
    found["missing"] = sum(1 in sample.mask and key not in had for key, sample in samples.items())
    return {name: count for name, count in found.items() if count}


def summaries_of(records: Iterable[Mapping[str, Any]]) -> set[tuple[int, ...]]:
    """The ids of the turns in which a context was summed up."""
    found: set[tuple[int, ...]] = set()
    for record in records:
        marks = [[mark["kind"] for mark in turn["marks"]] for turn in record["turns"]]
        for segment in [*record["earlier"], record]:
            own = [
                each for each in segment["spans"] if each["kind"] != "context" and "compacted" in marks[each["turn"]]
            ]
            for turn in {span["turn"] for span in own}:
                places = [(span["start"], span["end"]) for span in own if span["turn"] == turn]
                found.add(tuple(segment["response_ids"][min(places)[0] : max(places)[1]]))
    return found


def rewards_differ(records: list[dict[str, Any]]) -> bool:
    """Whether a prompt's trajectories earned unequal rewards; without, a group's baseline leaves nothing to follow."""
    earned: dict[str, set[str]] = {}
    for record in records:
        earned.setdefault(record["origin"]["uid"], set()).add(json.dumps(record["reward"], sort_keys=True))
    return any(len(rewards) > 1 for rewards in earned.values())


def _relatives(parents: Mapping[str, str | None]) -> dict[str, frozenset[str]]:
    """Of each trajectory, those with the same root."""

    def root(trajectory: str) -> str:
        parent = parents.get(trajectory)
        return trajectory if parent is None else root(parent)

    trees: dict[str, set[str]] = {}
    for trajectory in parents:
        trees.setdefault(root(trajectory), set()).add(trajectory)
    return {each: frozenset(trees[root(each)] - {each}) for each in parents}


def _digest(sample: Sample) -> bytes:
    """As the trainer's files have it: blake2b of the prompt's length and of all ids, each a little-endian int64."""
    hashed = hashlib.blake2b(len(sample.prompt_ids).to_bytes(8, "little"), digest_size=8)
    for each in sample.prompt_ids + sample.response_ids:
        hashed.update(each.to_bytes(8, "little"))
    return hashed.digest()
