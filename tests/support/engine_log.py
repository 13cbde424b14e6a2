"""A trace derived again from the engine's own log, by code that shares nothing with the code under test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SAMPLE_KEYS = ("prompt_ids", "response_ids", "loss_mask", "logprobs", "spans")


def derive(
    record: dict[str, Any], generations: list[dict[str, Any]], *, stands_in: frozenset[int] = frozenset()
) -> tuple[list[int], list[int], list[float]]:
    """(ids, mask, logprobs) of a trajectory's response, as the engine's log has them.

    Follows the chain of generations: each one's prompt begins with everything before it; what lies between is context.

    Args:
        record: the trace's JSON record; its ids are only used to tell siblings with the same prompt apart.
        generations: all of the engine's records; those that belong to the trajectory are removed.
        stands_in: ids that a policy stops at and that open the next message as well. Where a conversation goes on
            after one, it is the message's, not the policy's.
    """
    claimed = record["prompt_ids"] + record["response_ids"]
    context: list[int] = list(record["prompt_ids"])
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    left = sum(turn.get("generations", 1) for turn in record["turns"])
    while left:
        if ids and ids[-1] in stands_in:
            del ids[-1], mask[-1], logprobs[-1], context[-1]
        found = pick(record, claimed, context, generations, stands_in)
        generations.remove(found)
        between = found["prompt_ids"][len(context) :]
        ids += between + found["token_ids"]
        mask += [0] * len(between) + [1] * len(found["token_ids"])
        logprobs += [0.0] * len(between) + found["log_probs"]
        context = found["prompt_ids"] + found["token_ids"]
        left -= not was_aborted(found)
    return ids, mask, logprobs


def was_aborted(generation: dict[str, Any]) -> bool:
    """Whether the engine ended it for new weights; its client asks for the rest in a further request."""
    reason = generation.get("finish_reason")
    return isinstance(reason, dict) and reason.get("type") == "abort"


def samples_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """A trajectory's training samples as records of their own, each with the turns that were sampled in it."""
    samples: list[dict[str, Any]] = []
    for segment in [*record["earlier"], record]:
        numbers = {span["turn"] for span in segment["spans"] if span["kind"] in ("thinking", "completion")}
        turns = [record["turns"][number] for number in sorted(numbers)]
        if turns:
            samples.append({key: segment[key] for key in SAMPLE_KEYS} | {"turns": turns})
    return samples


def pick(
    record: dict[str, Any],
    claimed: list[int],
    context: list[int],
    generations: list[dict[str, Any]],
    stands_in: frozenset[int] = frozenset(),
) -> dict[str, Any]:
    """The generation that continued `context` as the trajectory goes on.

    Siblings may have sampled the same ids in batches of other sizes, whose logprobs differ by a rounding; then the one
    with the record's own logprobs is meant, if there is one.
    """
    candidates = [
        generation
        for generation in generations
        if generation["prompt_ids"][: len(context)] == context and begins(claimed, generation, stands_in)
    ]
    assert candidates, "the engine never continued this context"
    # A sibling with the same conversation may be ahead, and its later turns in the log before this one's first.
    nearest = min(len(generation["prompt_ids"]) for generation in candidates)
    candidates = [generation for generation in candidates if len(generation["prompt_ids"]) == nearest]
    for generation in candidates:
        start = len(generation["prompt_ids"]) - len(record["prompt_ids"])
        if record["logprobs"][start : start + len(generation["log_probs"])] == generation["log_probs"]:
            return generation
    return candidates[0]


def begins(claimed: list[int], generation: dict[str, Any], stands_in: frozenset[int]) -> bool:
    """Whether the conversation went on from this generation; what stood in for the next message may be another's."""
    said: list[int] = generation["prompt_ids"] + generation["token_ids"]
    return claimed[: len(said)] == said or (said[-1] in stands_in and claimed[: len(said) - 1] == said[:-1])


def read_generations(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_records(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]


def rewards_differ(records: list[dict[str, Any]]) -> bool:
    """Whether a prompt's trajectories earned unequal rewards; without, a group's baseline leaves nothing to follow."""
    earned: dict[str, set[str]] = {}
    for record in records:
        earned.setdefault(record["origin"]["uid"], set()).add(json.dumps(record["reward"], sort_keys=True))
    return any(len(rewards) > 1 for rewards in earned.values())
