"""Groups that withdrawals left too small, through verl's replay buffer, its TransferQueue and its advantages.

And those of which trajectories never began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from omegaconf import OmegaConf

from mcp_rollout.rollout.environment.sections import TreeConfig
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.loop.group import Group

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl", "transfer_queue")]

WITHOUT_FILTER = {"enable": False, "metric": "reward", "max_inflight_gen_batches": 1}


def buffer(refill: Callable[[int], None] | None = None, mode: str = "sync", **sampler_kwargs: Any) -> Any:
    from mcp_rollout.rollout.verl.replay_buffer import MCPReplayBuffer, MCPReplayBufferAsync

    given = {"group_size": 4, "train_batch_size": 3, "filter_groups": WITHOUT_FILTER} | sampler_kwargs
    return (MCPReplayBuffer if mode == "sync" else MCPReplayBufferAsync)(
        trainer_mode=mode,
        trainer_config=OmegaConf.create({}),
        max_off_policy_threshold=8,
        max_off_policy_strategy="drop",
        sampler_kwargs=OmegaConf.create(given),
        poll_interval=0.05,
        refill_fn=refill,
    )


def finish(groups: dict[str, list[float]]) -> None:
    """What a worker writes: the rewards of the trajectories that were not withdrawn, and the end of their group."""
    import torch
    import transfer_queue as tq
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    for uid, rewards in groups.items():
        for session, reward in enumerate(rewards):
            mask, scores = torch.ones(2), torch.tensor([0.0, reward])
            extra = {"mcp_trace": f"trace-{uid}-{session}", "mcp_segment": 0}
            fields = [{"uid": uid, "rm_scores": scores, "response_mask": mask, "extra_fields": extra}]
            tag = {"status": "success", "seq_len": 4}
            tq.kv_batch_put([f"{uid}_{session}_0"], "train", list_of_dict_to_tensordict(fields), [tag])
        tq.kv_put(key=uid, partition_id="train", tag={"is_prompt": True, "status": "finished", "global_steps": 1})


def ended(group: str, *, withdrawn: bool, score: float = 1.0) -> Any:
    """What a worker reports of a trajectory."""
    from mcp_rollout.rollout.trace.outcome import StrategyRecord
    from mcp_rollout.rollout.training.statistics import TrajectoryStatistics
    from mcp_rollout.rollout.training.void import Evidence

    failure = "server_died: gone" if withdrawn else ""
    return TrajectoryStatistics(
        validate=False,
        values={"mcp/failed_share": float(withdrawn)} | ({} if withdrawn else {"mcp/score/mean": score}),
        tool_calls=0,
        tool_errors=0,
        tools_changed=None,
        is_in_loss=not withdrawn,
        calls=(),
        sampled_tokens=5,
        worlds_lost=0,
        strategy=StrategyRecord(),
        has_branched=False,
        path_s=0.0,
        evidence=Evidence(
            group=group, ended=None, failure=failure, score=score, best=1.0, turns=1, calls=0, errors=0, sampled=5,
            unread="", error="",
        ),
    )  # fmt: skip


@pytest.fixture
def report(transfer_queue: None) -> Iterator[Callable[..., None]]:
    """Reports groups by their numbers of trajectories that count and that were withdrawn."""
    import ray

    from mcp_rollout.rollout.verl.batch_statistics import statistics_collector

    collector = statistics_collector()

    def give(**groups: tuple[int, int]) -> None:
        for group, (well, withdrawn) in groups.items():
            for number in range(well + withdrawn):
                ray.get(collector.add.remote(ended(group, withdrawn=number >= well)))

    yield give
    ray.kill(collector)


def advantages(keys: list[str]) -> dict[str, float]:
    """verl's GRPO advantages, by key."""
    import numpy as np
    import transfer_queue as tq
    from verl.protocol import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    data = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=["rm_scores", "response_mask"])
    batch = DataProto(batch=data.to_padded_tensor())
    batch.batch["token_level_rewards"] = batch.batch["rm_scores"]
    batch.non_tensor_batch["uid"] = np.array([key.split("_")[0] for key in keys], dtype=object)
    done = compute_advantage_for_multi_trajectories(batch, batch_keys=keys, adv_estimator="grpo")
    return dict(zip(keys, done.batch["advantages"][:, 0].tolist(), strict=True))


def test_a_lone_survivor_is_withdrawn_with_its_group_and_group_sizes_are_metrics() -> None:
    finish({"whole": [1.0, 0.0, 1.0, 0.0], "lone": [1.0], "none": []})
    batch, metrics = buffer().sample(1, "train", 3)
    assert sorted(batch.keys) == [f"whole_{session}_0" for session in range(4)]
    assert sum(advantages(batch.keys).values()) == pytest.approx(0.0, abs=1e-5)
    assert (metrics["mcp/group_size/min"], metrics["mcp/withdrawn_groups"]) == (0, 2)
    assert metrics["mcp/group_size/mean"] == pytest.approx(4 / 3)


def test_without_the_rule_the_advantage_of_a_lone_survivor_is_its_reward() -> None:
    finish({"whole": [1.0, 0.0], "lone": [1.0], "none": []})
    batch, metrics = buffer(min_group_size=1).sample(1, "train", 3)
    assert advantages(batch.keys)["lone_0_0"] == pytest.approx(1.0, abs=1e-4)
    assert (metrics["mcp/group_size/min"], metrics["mcp/withdrawn_groups"]) == (0, 1)


def test_rows_with_one_trajectory_each_are_groups_of_their_own() -> None:
    finish({"one": [1.0], "two": [0.0], "three": [0.5]})
    batch, _ = buffer(group_size=1).sample(1, "train", 3)
    assert len(batch.keys) == 3


@pytest.mark.parametrize(("mode", "refills"), [("sync", [2]), ("colocate_async", [3])])
def test_filter_groups_replaces_groups_of_one_reward_and_a_withdrawn_group_does_not_end_training(
    mode: str, refills: list[int]
) -> None:
    refilled: list[int] = []

    def refill(count: int) -> None:
        refilled.append(count)
        finish({f"more{number}": [1.0, 0.0] for number in range(count)})

    finish({"equal": [1.0, 1.0, 1.0], "lone": [1.0], "none": []})
    batch, metrics = buffer(refill, mode, filter_groups=WITHOUT_FILTER | {"enable": True}).sample(1, "train", 3)
    assert refilled == refills and metrics["training/filter_groups/evicted_samples"] == 1
    assert batch.keys and all(key.startswith("more") for key in batch.keys)


def test_filtering_stops_training_where_only_groups_of_one_reward_come() -> None:
    from mcp_rollout.rollout.verl.replay_buffer import AllTied

    refilled: list[int] = []

    def refill(count: int) -> None:
        refilled.append(count)
        assert sum(refilled) < 20, "refilled without end"
        finish({f"more{sum(refilled)}x{number}": [0.0, 0.0] for number in range(count)})

    finish({"one": [0.0, 0.0], "two": [0.0, 0.0], "good": [1.0, 0.0]})
    bounded = WITHOUT_FILTER | {"enable": True, "max_num_gen_batches": 2}
    with pytest.raises(AllTied, match=r"8 groups were replaced.* while 3 with an advantage.*max_num_gen_batches=2"):
        buffer(refill, filter_groups=bounded).sample(1, "train", 3)


def test_what_is_dropped_is_reported_with_its_reason_and_its_trace() -> None:
    from mcp_rollout.rollout.verl.trained_batch import dropped_segments

    dropped: list[tuple[str, int, str | None]] = []

    def keep(reasons: Mapping[str, str]) -> None:
        dropped.extend((each.trace, each.segment, each.dropped) for each in dropped_segments(reasons, step=1))

    def refill(count: int) -> None:
        finish({f"more{number}": [1.0, 0.0] for number in range(count)})

    finish({"equal": [1.0, 1.0], "lone": [0.0], "good": [1.0, 0.0]})
    sampling = buffer(refill, filter_groups=WITHOUT_FILTER | {"enable": True})
    sampling.on_drop = keep
    batch, _ = sampling.sample(1, "train", 2)
    reasons = {trace: reason for trace, _, reason in dropped}
    assert len(reasons) == len(dropped)
    assert reasons.pop("trace-lone-0") == "small_group"
    assert [reasons.pop(f"trace-equal-{session}") for session in (0, 1)] == ["filtered"] * 2
    assert set(reasons.values()) <= {"surplus"}  # what a refill had begun beyond the batch
    assert {f"trace-{key.rsplit('_', 1)[0].replace('_', '-')}" for key in batch.keys}.isdisjoint(reasons)


def test_a_batch_of_which_no_group_is_left_says_why(report: Callable[..., None]) -> None:
    from mcp_rollout.rollout.training.statistics import TooManyFailures

    report(lone=(0, 1))
    finish({"lone": [1.0]})
    with pytest.raises(TooManyFailures, match=r"no group of the batch has 2 trajectories left(.|\n)*server_died: gone"):
        buffer(max_failed_share=1.0).sample(1, "train", 1)


def test_batches_that_teach_nothing_are_reported_and_then_stop_training(report: Any) -> None:
    import ray
    from structlog.testing import capture_logs

    from mcp_rollout.rollout.training.void import VoidRun
    from mcp_rollout.rollout.verl.batch_statistics import statistics_collector

    sampling = buffer(void_batches=2, group_size=8, tool_format="hermes")

    def sample(group: str) -> Any:
        for _ in range(8):
            ray.get(statistics_collector().add.remote(ended(group, withdrawn=False, score=0.0)))
        finish({group: [0.0] * 8})
        return sampling.sample(1, "train", 1)

    with capture_logs() as logs:
        _, metrics = sample("first")
    assert [(each["defect"], each["log_level"]) for each in logs] == [("no_calls", "warning")]
    assert metrics["mcp/zero_advantage_share"] == 1.0
    with pytest.raises(VoidRun, match=r"(?s)after 2 batches .*no_calls.*read as hermes"):
        sample("second")


def test_asynchronous_batches_have_as_many_groups_as_were_asked_for_and_count_what_was_withdrawn(
    report: Callable[..., None],
) -> None:
    refilled: list[int] = []

    def refill(count: int) -> None:
        refilled.append(count)
        for number in range(count):
            finish({f"more{number}": [1.0, 0.0, 1.0, 0.0]})
            report(**{f"more{number}": (4, 0)})

    finish({"whole": [1.0, 0.0, 1.0, 0.0], "lone": [1.0], "none": []})
    # A group of the next batch has ended already; it counts there.
    report(whole=(4, 0), lone=(1, 3), none=(0, 4), next=(4, 0))
    sampling = buffer(refill, "colocate_async", max_failed_share=0.5)
    batch, metrics = sampling.sample(1, "train", 3)
    assert refilled == [2] and {key.split("_")[0] for key in batch.keys} == {"whole", "more0", "more1"}
    assert (metrics["mcp/withdrawn_groups"], metrics["mcp/group_size/min"]) == (2, 4)
    assert metrics["mcp/trajectories"] == 20 and metrics["mcp/failed_share"] == 7 / 20
    finish({"next": [1.0, 0.0, 1.0, 0.0]})
    _, metrics = sampling.sample(2, "train", 1)
    assert (metrics["mcp/trajectories"], metrics["mcp/withdrawn_groups"], metrics["mcp/failed_share"]) == (4, 0, 0)


@pytest.mark.parametrize(
    ("allowed", "most", "message"),
    [(0.5, 4, r"16 of 28 trajectories were withdrawn(.|\n)*server_died"), (1.0, 30, "31 groups were withdrawn whole")],
)
def test_asynchronous_training_stops_while_it_waits_for_a_batch_that_cannot_be_had(
    report: Callable[..., None], allowed: float, most: int, message: str
) -> None:
    from mcp_rollout.rollout.training.statistics import TooManyFailures

    refilled: list[int] = []

    def refill(count: int) -> None:
        refilled.append(count)
        assert sum(refilled) <= most, "refilled without end"
        for number in range(count):
            finish({f"more{len(refilled)}x{number}": []})
            report(**{f"more{len(refilled)}x{number}": (0, 4)})

    finish({"none": []})
    report(none=(0, 4))
    with pytest.raises(TooManyFailures, match=message):
        buffer(refill, "colocate_async", max_failed_share=allowed).sample(1, "train", 3)


def test_the_batches_of_one_step_are_counted_together(report: Callable[..., None]) -> None:
    from mcp_rollout.rollout.verl.replay_buffer import metrics_of

    batches: list[Any] = []
    for group, (well, withdrawn) in {"one": (4, 0), "two": (2, 2)}.items():
        finish({group: [1.0, 0.0, 1.0, 0.0][:well]})
        report(**{group: (well, withdrawn)})
        sampling = buffer(None, "separate_async")
        sampling.sample(1, "train", 1)
        batches.append(sampling.sampled)
    metrics = metrics_of(batches)
    assert (metrics["mcp/trajectories"], metrics["mcp/sampled_tokens"], metrics["mcp/failed_share"]) == (8, 40, 0.25)
    assert (metrics["mcp/group_size/min"], metrics["mcp/group_size/mean"]) == (2, 3)


@pytest.mark.anyio
@pytest.mark.parametrize(("validate", "own", "leaves"), [(False, None, 4), (True, None, 2), (False, 3, 3)])
async def test_trajectories_that_never_begin_leave_their_group(validate: bool, own: int | None, leaves: int) -> None:
    """verl's worker makes a group of each prompt. No agent loop has this name, so each session ends at once."""
    from mcp_rollout.rollout.verl import agent_loop

    worker = object.__new__(agent_loop.MCPAgentLoopWorker)
    rollout = SimpleNamespace(n=4, val_kwargs=SimpleNamespace(n=2))
    worker._held, worker._seed = {"u"}, 0
    worker.config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
    prompt = {"uid": "u", "agent_name": "no such agent"} | ({} if own is None else {"__rollout_n__": own})
    trajectory = {"step": 1, "validate": validate, "sample_index": 0, "rollout_n": 0}
    with anyio.fail_after(60):
        await worker._run_prompt(prompt, {}, trajectory)
        group = agent_loop._BATCH.get().group
        assert isinstance(group, Group) and group.size == leaves
        assert isinstance(await group.branch(Origin(sample=leaves), TreeConfig(roots=leaves)), str)
