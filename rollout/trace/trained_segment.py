"""What a trainer computed on one training sample, as `rollout.trace.trained` reads it from its files."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIRECTORY = "trained"
SUFFIX = ".trained.parquet"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedSegment:
    """One training sample: a segment of a trace, and what the trainer computed on the tokens of its response.

    All sequences have a value for each token of the segment's response, 0.0 where it was not trained on.
    """

    trace: str
    """Id of the trace."""
    segment: int
    """Number of the segment in the trace: 0 is the first of `earlier`, and the last one is the trace's own."""
    step: int
    uid: str
    """verl's group; with `sample` and `output` the sample's key in TransferQueue, `{uid}_{sample}_{output}`."""
    sample: int
    output: int
    dropped: str | None = None
    """Why the sample was not trained on (`filtered`, `surplus`, `stale`, `failed`, `small_group`); no numbers then."""
    ids_digest: bytes | None = None
    """`digest` of the ids that were trained on."""
    mask: Sequence[bool] = ()
    """Whether the token is in the loss, as the trainer had it: rollout correction may reject tokens of the trace's."""
    sampled_logprobs: Sequence[float] | None = None
    """Log-probability of the token where it was sampled; None if the engine reported none."""
    trainer_logprobs: Sequence[float] = ()
    """Log-probability that the trainer computed before its update (verl's `old_log_probs`; the sampled one under
    `bypass_mode`)."""
    advantages: Sequence[float] = ()
    """Advantage times mask: positive where the update makes the token more probable."""
    entropy: Sequence[float] | None = None
    """Entropy of the trainer's distribution, in nats; None under `bypass_mode`, which computes none."""
    versions: Sequence[int] | None = None
    """The trainer's step of the weights that sampled the token, -1 if it is unknown; 0 where it was not trained on."""

    @property
    def ratios(self) -> list[float] | None:
        """exp(trainer's minus sampled log-probability): 1.0 where trainer and engine agree."""
        if self.sampled_logprobs is None:
            return None
        pairs = zip(self.mask, self.trainer_logprobs, self.sampled_logprobs, strict=True)
        return [math.exp(trainer - sampled) if is_in_loss else 0.0 for is_in_loss, trainer, sampled in pairs]


def digest(prompt_ids: Sequence[int], response_ids: Sequence[int]) -> bytes:
    """Digest of a sample's ids, by which a reader verifies that a segment is the one that was trained on.

    Args:
        prompt_ids: ids, or an int64 array of them.
        response_ids: the same.
    """
    hashed = hashlib.blake2b(len(prompt_ids).to_bytes(8, "little"), digest_size=8)
    sequences: tuple[Any, Any] = (prompt_ids, response_ids)
    for ids in sequences:
        hashed.update(ids.tobytes() if hasattr(ids, "tobytes") else array("q", ids).tobytes())
    return hashed.digest()


def trained_files(directory: str | Path, step: int | None = None) -> list[Path]:
    """The files beside the traces of a directory, of all steps or of one, by step and then by time of writing."""
    begin = "" if step is None else f"{step:08d}-"
    return sorted((Path(directory) / DIRECTORY).glob(f"{begin}*{SUFFIX}"))
