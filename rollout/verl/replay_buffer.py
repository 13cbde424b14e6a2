"""verl's replay buffers, extended by `mcp/*` metrics and rules about withdrawn trajectories.

`trainer.v1.sampler.custom_sampler` names a class of this module. Its `sampler_kwargs` are:

- `max_failed_share`: largest share of a batch's trajectories that may be withdrawn.
- `min_group_size`: a group with fewer trajectories left is withdrawn whole; with `group_size` if that is smaller.
- `group_size`: the trajectories of a row, `rollout.n`.
- `void_batches`, `tool_format`: as in `rollout.training.void`.
- `filter_groups`, `train_batch_size`: verl's `algorithm.filter_groups` and `data.train_batch_size`, which verl gives
  to its own buffers only. `filter_groups.max_num_gen_batches`, which those ignore, bounds how many groups are replaced.
- `poll_interval_s`: how often the trainer checks whether its batch is complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, cast

import ray
import structlog
import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from mcp_rollout.rollout.errors import StopTraining
from mcp_rollout.rollout.training.statistics import (
    BatchStatistics,
    TooManyFailures,
    check_failures,
    listed,
)
from mcp_rollout.rollout.training.void import VoidWatch
from mcp_rollout.rollout.verl.batch_statistics import statistics_collector

log = structlog.get_logger(__name__)


def _uid(key: str) -> str:
    """The group of a trajectory; verl's keys are `{uid}_{session}_{sample}`."""
    return key.split("_")[0]


def group_sizes(keys: Iterable[str]) -> Counter[str]:
    """Number of trajectories by group; the samples of one trajectory count once."""
    return Counter(_uid(session) for session in {key.rsplit("_", 1)[0] for key in keys})


def group_metrics(keys: Iterable[str], groups: int, replaced: int = 0) -> dict[str, float]:
    """Metrics of the trained groups' sizes; groups withdrawn whole count as 0, unless others have replaced them."""
    sizes = list(group_sizes(keys).values())
    withdrawn = max(groups - len(sizes), 0)
    sizes += [0] * withdrawn
    return {
        "mcp/group_size/min": float(min(sizes, default=0)),
        "mcp/group_size/mean": fmean(sizes) if sizes else 0.0,
        "mcp/withdrawn_groups": float(withdrawn + replaced),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """What a batch was sampled from."""

    statistics: BatchStatistics
    """Of the groups that it has, and of those that were removed while it was waited for."""
    keys: Sequence[str]
    groups: int
    """How many were asked for."""
    replaced: int
    """Groups that were withdrawn whole, and replaced by others."""


def metrics_of(batches: Sequence[Sampled]) -> dict[str, float]:
    """`mcp/*` of the batches of one step."""
    return BatchStatistics.merged([each.statistics for each in batches]).metrics() | group_metrics(
        [key for each in batches for key in each.keys],
        sum(each.groups for each in batches),
        sum(each.replaced for each in batches),
    )


def _filter_arguments(sampler_kwargs: Any) -> dict[str, Any]:
    """What verl gives its own replay buffers, but none of another's, for `algorithm.filter_groups`."""
    given = sampler_kwargs.get("filter_groups")
    if not given or not given.enable:
        return {}
    return {
        "filter_groups_metric": given.metric,
        "max_inflight_gen_batches": given.max_inflight_gen_batches,
        "train_batch_size": sampler_kwargs.train_batch_size,
        "gen_batch_size": 1,
    }


def report_drift(batch: BatchStatistics) -> None:
    """Log one warning if sibling trajectories got different results from identical calls."""
    if batch.drifts:
        log.warning(
            "environment drift: identical calls of sibling trajectories got different results",
            calls=len(batch.drifts),
            tools=sorted({f"{drift.one.server}/{drift.one.tool}" for drift in batch.drifts}),
            example=str(batch.drifts[0]),
        )


_MOST_REPLACED = 10
"""Withdrawn groups that are replaced for each group of a batch, whatever `max_failed_share` allows."""


class AllTied(StopTraining):
    """More groups of one reward were replaced than `algorithm.filter_groups.max_num_gen_batches` allows."""


class BatchChecks:
    """Mixin for verl's replay buffers."""

    sampled: Sampled | None = None
    """The last batch for training."""

    on_drop: Callable[[Mapping[str, str]], None] | None = None
    """Called with the reasons by key, before samples of ended groups that will not be trained on are removed."""

    sampler_kwargs: Any
    poll_interval: float
    partitions: dict[str, dict[str, dict[str, Any]]]
    finished_keys: dict[str, set[str]]
    failure_keys: dict[str, set[str]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = kwargs["sampler_kwargs"]
        super().__init__(*args, **kwargs, **_filter_arguments(given))
        self.poll_interval = float(given.get("poll_interval_s", self.poll_interval))
        self._min_group_size = min(int(given.get("min_group_size", 2)), int(given.get("group_size", 1)))
        self._group_size = int(given.get("group_size", 1))
        self._is_empty = False  # no group that was selected last has a trajectory
        self._selected: list[str] = []
        self._removed: set[str] = set()  # groups of training that were removed since the last batch
        self._replaced = 0  # those of them that were withdrawn whole
        self._filtered = 0  # groups of one reward that were replaced since the last batch
        self._most_filtered = int((given.get("filter_groups") or {}).get("max_num_gen_batches") or 0)  # in batches
        self._asked = int(given.get("train_batch_size", 1))
        self._reasons: dict[str, str] = {}  # why the groups of the current eviction are removed, by uid
        self._void = VoidWatch(int(given.get("void_batches", 0)), tool_format=str(given.get("tool_format", "")))

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """Sample as verl does, and add `mcp/*` to its metrics.

        Raises:
            ToolsChanged: a server has changed its tools.
            TooManyFailures: more trajectories of the batch were withdrawn than allowed, or no group is left.
            VoidRun: this batch, like some before it, teaches nothing.
            AllTied: groups of one reward were replaced, batch after batch.
        """
        if partition_id != "val":
            self._asked = batch_size
        try:
            batch, metrics = super().sample(global_steps, partition_id, batch_size)  # type: ignore[misc]
        except StopTraining:
            raise
        except RuntimeError as error:
            # verl rejects a batch without trajectories; our error says why there are none.
            failures = self._checked(partition_id).failures
            if self._is_empty and failures:
                raise TooManyFailures(
                    f"no group of the batch has {self._min_group_size} trajectories left, {failures.total()} were "
                    f"withdrawn:\n{listed(failures)}"
                ) from error
            raise
        statistics = self._checked(partition_id)
        if partition_id == "val":
            return batch, metrics | statistics.metrics()
        self.sampled = Sampled(statistics=statistics, keys=list(batch.keys), groups=batch_size, replaced=self._replaced)
        self._replaced = self._filtered = 0
        return batch, metrics | metrics_of([self.sampled])

    def _select_prompt_uids(self, partition_id: str, sampleable_keys: set[str], batch_size: int) -> Any:
        found = super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)  # type: ignore[misc]
        selected, trajectories, _ = found
        self._selected = list(selected)
        self._is_empty = not {_uid(key) for key in trajectories} & set(selected)
        return found

    def _sync_metadata_from_transfer_queue(self) -> None:
        """Read the state of all groups as verl does, less the trajectories of groups that are too small.

        A group's baseline is the mean of its trajectories, so the advantage of a lone one would be its reward. The
        sessions of a group have all ended when its state is `finished` or `failure`.
        """
        super()._sync_metadata_from_transfer_queue()  # type: ignore[misc]
        trajectories = self.partitions["train"]
        ended = self.finished_keys["train"] | self.failure_keys["train"]
        sizes = group_sizes(trajectories)
        small = {uid for uid in ended if 0 < sizes[uid] < self._min_group_size}
        if keys := [key for key in trajectories if _uid(key) in small]:
            log.warning("groups withdrawn whole", groups=len(small), trajectories=len(keys), least=self._min_group_size)
            self._report_dropped(dict.fromkeys(keys, "small_group"))
            tq.kv_clear(partition_id="train", keys=keys)
            for key in keys:
                del trajectories[key]
        # verl's word for a group without trajectories. In the synchronous mode it takes its place in the batch, whose
        # missing rows verl pads; the asynchronous ones remove and replace it. In a finished group `filter_groups` would
        # miss the metric, and end training.
        empty = {uid for uid in ended if sizes[uid] < self._min_group_size}
        self.failure_keys["train"] |= empty
        self.finished_keys["train"] -= empty

    def _evict_terminal_groups(
        self, global_steps: int, partition_id: str, eviction_reasons: tuple[set[str], set[str], set[str], Any]
    ) -> Any:
        stale, filtered, failed, _ = eviction_reasons
        self._reasons = dict.fromkeys(failed, "failed") | dict.fromkeys(filtered, "filtered")
        self._reasons |= dict.fromkeys(stale, "stale")
        evicted = super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)  # type: ignore[misc]
        if failed:
            self._replaced += len(failed)
            self._check_replaced()
        self._filtered += len(filtered)
        if 0 < self._most_filtered * self._asked <= self._filtered:
            raise AllTied(
                f"{self._filtered} groups were replaced, in each of which all rewards were equal, while {self._asked} "
                f"with an advantage were waited for: as many as max_num_gen_batches={self._most_filtered} allows\n"
                "  Remedy: other tasks, more samples of each, or a reward with more parts"
            )
        return evicted

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        """Remove groups as verl does: those that are evicted for a reason, and those beyond a filtered batch."""
        if partition_id == "train":
            keys = [key for key in self.partitions[partition_id] if _uid(key) in uids]
            self._report_dropped({key: self._reasons.get(_uid(key), "surplus") for key in keys})
            self._removed |= uids
        super()._clear_groups(partition_id, uids)  # type: ignore[misc]

    def _report_dropped(self, reasons: Mapping[str, str]) -> None:
        if reasons and self.on_drop is not None:
            self.on_drop(reasons)

    def _check_replaced(self) -> None:
        """Stop where the batch that is waited for cannot be one that may be trained on, however it goes on."""
        removed = cast("BatchStatistics", ray.get(statistics_collector().of.remote(self._removed)))
        check_failures(removed, self._max_failed_share, expected=self._asked * self._group_size)
        if self._replaced > _MOST_REPLACED * self._asked:
            raise TooManyFailures(
                f"{self._replaced} groups were withdrawn whole while {self._asked} were waited for:\n"
                f"{listed(removed.failures)}"
            )

    @property
    def _max_failed_share(self) -> float:
        return float(self.sampler_kwargs.get("max_failed_share", 0.5))

    def _checked(self, partition_id: str) -> BatchStatistics:
        """The statistics of the batch that was selected, which the collector gives away."""
        groups = set(self._selected)
        if partition_id != "val":
            groups |= self._removed
            self._removed = set()
        taken = statistics_collector().take.remote(groups, partition_id == "val")
        batch = cast("BatchStatistics", ray.get(taken))
        check_failures(batch, self._max_failed_share)
        report_drift(batch)
        if partition_id != "val" and batch.trajectories and not batch.in_loss:
            # verl fails on a batch without a token in the loss, and does not report why there is none.
            marks = {name: share for name, share in batch.metrics().items() if name.startswith("mcp/marks/") and share}
            log.error("no token of this batch is in the loss: the filters masked every trajectory", **marks)
        if partition_id != "val":
            for finding in self._void.add([one.evidence for one in batch.trajectories]):
                what = {"problem": finding.problem, "remedy": finding.remedy}
                log.warning("batch teaches nothing", defect=str(finding.defect), **what)
        return batch


class MCPReplayBuffer(BatchChecks, ReplayBuffer):
    """For the synchronous trainer modes: a group that was withdrawn whole is missing in its batch."""


class MCPReplayBufferAsync(BatchChecks, ReplayBufferAsync):
    """For the asynchronous trainer modes: a group that was withdrawn whole is replaced by another prompt's."""
