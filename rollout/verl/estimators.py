"""The advantage estimators `tree_grpo` and `step_grpo`, registered with verl.

verl gives a registered estimator rewards, mask, configuration and uid only. Our trainer reads the further columns of
the batch first, and the estimator finds them in a ContextVar: verl's own code around the estimator (KL penalty, rollout
correction) runs unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transfer_queue as tq
from verl.trainer.ppo.core_algos import register_adv_est

from mcp_rollout.rollout.verl.advantages import ByTurn, step_grpo, tree_grpo
from mcp_rollout.rollout.verl.rolled_out import COLUMN, TURNS_COLUMN, RolledOut
from mcp_rollout.rollout.verl.settings import ESTIMATORS, AdvantagesConfig
from mcp_rollout.rollout.verl.trained_batch import own_samples, real_keys


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One row of a batch."""

    row: int
    trajectory: int
    """Index among the trajectories of the batch."""
    is_last: bool
    """Whether it is the trajectory's last sample, whose reward counts."""
    turns: torch.Tensor
    """By response token, the turn that it belongs to, -1 for tokens that were not sampled."""  # int64 [response]


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The samples of a batch without those that verl added to fill it up, and the trajectories that they are of."""

    samples: list[Sample]
    trajectories: list[dict[str, Any]]
    """The fields of `RolledOut` but the score, which the estimator is given."""
    settings: AdvantagesConfig


_BATCH: ContextVar[Batch] = ContextVar("mcp_rollout_advantages")


@contextmanager
def columns_of(batch: tq.KVBatchMeta, settings: AdvantagesConfig) -> Generator[None]:
    """Give the columns of a batch to the estimators within the block."""
    token = _BATCH.set(read(batch, settings))
    try:
        yield
    finally:
        _BATCH.reset(token)


def read(batch: tq.KVBatchMeta, settings: AdvantagesConfig) -> Batch:
    """Read the columns of a batch."""
    keys = real_keys(batch)
    rows = {key: row for row, key in enumerate(batch.keys)}
    columns = _columns(keys, str(batch.partition_id))
    last: dict[str, int] = {}
    for key in keys:
        session, _, output = key.rpartition("_")
        last[session] = max(int(output), last.get(session, 0))
    numbers: dict[str, int] = {}
    samples: list[Sample] = []
    trajectories: list[dict[str, Any]] = []
    for key in keys:
        session, _, output = key.rpartition("_")
        turns, of_trajectory = columns[key]
        if session not in numbers:
            numbers[session] = len(numbers)
            trajectories.append({"uid": key.rsplit("_", 2)[0], **of_trajectory})
        is_last = int(output) == last[session]
        samples.append(Sample(row=rows[key], trajectory=numbers[session], is_last=is_last, turns=turns))
    return Batch(samples=samples, trajectories=trajectories, settings=settings)


def _columns(keys: list[str], partition: str) -> dict[str, tuple[torch.Tensor, dict[str, Any]]]:
    """By key, the turns of the tokens and the fields of the trajectory.

    A trajectory of another agent is a chain of one turn, which is compared in the row alone, as by `grpo`.
    """
    found: dict[str, tuple[torch.Tensor, dict[str, Any]]] = {}
    if own := list(own_samples(keys)):
        data = tq.kv_batch_get(own, partition, select_fields=[TURNS_COLUMN, COLUMN])
        fields: list[Any] = [getattr(column, "data", column) for column in data[COLUMN]]
        found.update(zip(own, zip(data[TURNS_COLUMN], fields, strict=True), strict=True))
    if others := [key for key in keys if key not in found]:
        masks = tq.kv_batch_get(others, partition, select_fields=["response_mask"])["response_mask"]
        for key, mask in zip(others, masks, strict=True):
            found[key] = mask - 1, {"turns": 1, "tree": key}
    return found


def by_token(
    batch: Batch, token_level_rewards: torch.Tensor, response_mask: torch.Tensor, estimate: Callable[..., ByTurn]
) -> torch.Tensor:
    """Advantages of a batch: each token has that of its turn; rows that fill the batch up have none.

    Args:
        token_level_rewards: a trajectory's score is the sum over its last sample.  # float [rows, response]
        response_mask: 1 where a token is in the loss.  # int [rows, response]
        estimate: gives the advantages by trajectory and turn.
    """
    # The rewards of turns are not rounded to float32 as these are: seven digits give back what was.
    scores = {
        each.trajectory: float(f"{token_level_rewards[each.row].sum().item():.7g}")
        for each in batch.samples
        if each.is_last
    }
    rolled_out = [RolledOut(score=scores[number], **fields) for number, fields in enumerate(batch.trajectories)]
    values = estimate(rolled_out)
    advantages = torch.zeros_like(token_level_rewards)
    for sample in batch.samples:
        # A token that was not sampled has turn -1, whose value is multiplied by the mask's 0.
        of_turns = torch.tensor([*values[sample.trajectory], 0.0], dtype=advantages.dtype)
        advantages[sample.row, : len(sample.turns)] = of_turns[sample.turns]
    return advantages * response_mask


def _tree(settings: AdvantagesConfig, config: Any) -> Callable[..., ByTurn]:
    return partial(tree_grpo, weight=settings.tree_weight, normalise=_normalises(config))


def _step(settings: AdvantagesConfig, config: Any) -> Callable[..., ByTurn]:
    discount = float(config.gamma)
    return partial(step_grpo, weight=settings.step_weight, discount=discount, normalise=_normalises(config))


def _normalises(config: Any) -> bool:
    return bool(config.get("norm_adv_by_std_in_grpo", True))


def _register(name: str, chosen: Callable[[AdvantagesConfig, Any], Callable[..., ByTurn]]) -> None:
    @register_adv_est(name)
    def estimator(
        token_level_rewards: torch.Tensor, response_mask: torch.Tensor, config: Any = None, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        batch = _BATCH.get()
        estimate = chosen(batch.settings, config)
        advantages = by_token(batch, token_level_rewards, response_mask, estimate)
        return advantages, advantages

    del estimator  # registered


for _name, _chosen in zip(ESTIMATORS, (_tree, _step), strict=True):
    _register(_name, _chosen)
