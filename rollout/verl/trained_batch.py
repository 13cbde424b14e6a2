"""Read what verl's trainer computed on a batch, before verl clears it from TransferQueue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import transfer_queue as tq

from mcp_rollout.rollout.trace.trained_segment import TrainedSegment, digest
from mcp_rollout.rollout.verl.output import SEGMENT_KEY, TRACE_KEY
from mcp_rollout.rollout.verl.rolled_out import VERSIONS_COLUMN

_PARTITION = "train"
_COLUMNS = (
    "prompts",
    "responses",
    "response_mask",
    "rollout_log_probs",
    "old_log_probs",
    "advantages",
    "entropy",
    VERSIONS_COLUMN,
)


def real_keys(batch: tq.KVBatchMeta) -> list[str]:
    """Keys of a batch's samples, without those that verl added to fill it up."""
    return [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]


def trajectories(keys: Sequence[str]) -> dict[str, list[str]]:
    """Keys by trajectory (`{uid}_{session}`), those of its samples in order: the last key is the last sample's."""
    found: dict[str, list[str]] = {}
    for key in sorted(keys, key=lambda key: int(key.rpartition("_")[2])):
        found.setdefault(key.rpartition("_")[0], []).append(key)
    return found


def own_samples(keys: list[str]) -> dict[str, Mapping[str, Any]]:
    """The `extra_fields` of our agent loop's samples, by key; samples of other agents have no trace.

    A read of TransferQueue has the fields that all of its keys have: no column of ours, where one is of another agent.
    """
    data = tq.kv_batch_get(keys, _PARTITION, select_fields=["extra_fields"])
    extras: list[Any] = [getattr(value, "data", value) for value in data["extra_fields"]]
    return {key: extra for key, extra in zip(keys, extras, strict=True) if TRACE_KEY in extra}


def trajectory_metrics(batch: tq.KVBatchMeta) -> dict[str, float]:
    """verl's metrics of scores and rewards with each trajectory counted once, by its last sample.

    verl counts a trajectory once per sample. Every sample of a trajectory has the same score, and GRPO compares the
    last ones.
    """
    samples = trajectories(real_keys(batch))
    last = [keys[-1] for keys in samples.values()]
    data = tq.kv_batch_get(last, _PARTITION, select_fields=["rm_scores", "token_level_rewards"])
    scores = torch.stack([row.sum() for row in data["rm_scores"]])
    rewards = scores
    if "token_level_rewards" in data:  # score less the KL penalty, where there is one
        rewards = torch.stack([row.sum() for row in data["token_level_rewards"]])
    metrics = {"mcp/samples_per_trajectory": sum(map(len, samples.values())) / len(samples)}
    for name, values in (("score", scores), ("rewards", rewards)):
        found = {"mean": values.mean(), "max": values.max(), "min": values.min()}
        metrics |= {f"critic/{name}/{statistic}": value.item() for statistic, value in found.items()}
    return metrics


def trained_segments(batch: tq.KVBatchMeta, step: int) -> Iterator[TrainedSegment]:
    """What was computed on each sample of our agent loop."""
    extras = own_samples(real_keys(batch))
    if not extras:
        return
    data = tq.kv_batch_get(list(extras), _PARTITION, select_fields=list(_COLUMNS))
    columns: dict[str, Any] = {name: list(data[name]) for name in _COLUMNS if name in data}
    for row, (key, extra) in enumerate(extras.items()):
        numbers = {name: _numbers(column[row]) for name, column in columns.items()}
        yield TrainedSegment(
            **_identity(key, extra, step),
            ids_digest=digest(numbers["prompts"], numbers["responses"]),
            mask=numbers["response_mask"].astype(bool),
            sampled_logprobs=numbers.get("rollout_log_probs"),
            trainer_logprobs=numbers["old_log_probs"],
            advantages=numbers["advantages"],
            entropy=numbers.get("entropy"),
            versions=numbers[VERSIONS_COLUMN],
        )


def dropped_segments(reasons: Mapping[str, str], step: int) -> list[TrainedSegment]:
    """The samples with these keys, which are still in TransferQueue, as dropped for these reasons."""
    return [
        TrainedSegment(**_identity(key, extra, step), dropped=reasons[key])
        for key, extra in own_samples(list(reasons)).items()
    ]


def _numbers(tensor: torch.Tensor) -> Any:
    # numpy has no bfloat16, in which an actor's entropies may be.
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()


def _identity(key: str, extra: Mapping[str, Any], step: int) -> dict[str, Any]:
    uid, sample, output = key.rsplit("_", 2)
    return {
        "trace": extra[TRACE_KEY],
        "segment": extra[SEGMENT_KEY],
        "step": step,
        "uid": uid,
        "sample": int(sample),
        "output": int(output),
    }
