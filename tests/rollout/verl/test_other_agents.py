"""A batch with samples of verl's own agents, which have none of our columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]
STOCK: dict[str, Any] = {"extra_fields": {"turn_scores": [], "tool_rewards": []}}


class Queue:
    """In place of TransferQueue: a read has the fields that all of its keys have."""

    def __init__(self, samples: dict[str, dict[str, Any]]) -> None:
        self.samples = samples

    def get(self, keys: Sequence[str], partition_id: str, select_fields: Sequence[str]) -> Any:
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        asked = [self.samples[key] for key in keys]
        common = [name for name in select_fields if all(name in sample for sample in asked)]
        return list_of_dict_to_tensordict([{name: sample[name] for name in common} for sample in asked])

    @property
    def batch(self) -> Any:
        from transfer_queue import KVBatchMeta

        tags: list[dict[str, Any]] = [{} for _ in self.samples]
        return KVBatchMeta(partition_id="train", keys=list(self.samples), tags=tags)


def sample(number: int, *, turns: Sequence[int], is_ours: bool) -> dict[str, Any]:
    """By token the turn, -1 where it was not sampled."""
    import torch

    mask = (torch.tensor(turns) >= 0).long()
    ids, numbers = torch.arange(len(turns)), torch.full((len(turns),), float(number))
    trained = {"prompts": ids, "responses": ids, "response_mask": mask, "old_log_probs": numbers, "advantages": numbers}
    if not is_ours:
        return trained | STOCK
    tree = {"turns": max(turns) + 1, "tree": "t", "shared_turns": number, "rewards": [], "anchors": ["start", "a"]}
    own = {"mcp_turns": torch.tensor(turns), "mcp_versions": mask, "mcp": tree}
    return trained | own | {"extra_fields": {"mcp_trace": f"trace {number}", "mcp_segment": 0}}


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    """A root and a branch of one row, and two samples of a row that another agent played."""
    import transfer_queue as tq

    samples = {
        "v_0_0": sample(7, turns=[0, 0, -1, 0], is_ours=False),
        "u_0_0": sample(0, turns=[0, -1, 1], is_ours=True),
        "v_1_0": sample(8, turns=[0, 0], is_ours=False),
        "u_1_0": sample(1, turns=[0, -1, 1, 1], is_ours=True),
    }
    found = Queue(samples)
    monkeypatch.setattr(tq, "kv_batch_get", found.get)
    return found


@pytest.mark.parametrize("estimator", ["tree_grpo", "step_grpo"])
def test_samples_of_other_agents_are_compared_in_their_row(queue: Queue, estimator: str) -> None:
    import torch
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    from mcp_rollout.rollout.verl.estimators import columns_of
    from mcp_rollout.rollout.verl.settings import AdvantagesConfig

    def advantages(scores: dict[str, float]) -> dict[str, list[float]]:
        queue.samples = {key: queue.samples[key] for key in scores}
        rewards, masks = torch.zeros(len(scores), 4), torch.zeros(len(scores), 4)
        for row, (key, score) in enumerate(scores.items()):
            rewards[row, 0], own = score, queue.samples[key]["response_mask"]
            masks[row, : len(own)] = own
        with columns_of(queue.batch, AdvantagesConfig()):
            found, _ = ADV_ESTIMATOR_REGISTRY[estimator](
                token_level_rewards=rewards, response_mask=masks, config=AlgoConfig()
            )
        return dict(zip(scores, found.tolist(), strict=True))

    scores = {"v_0_0": 1.0, "u_0_0": 0.0, "v_1_0": 0.0, "u_1_0": 1.0}
    found = advantages(scores)
    half = 0.5**0.5
    assert found.pop("v_0_0") == pytest.approx([half, half, 0.0, half], abs=1e-4)
    assert found.pop("v_1_0") == pytest.approx([-half, -half, 0.0, 0.0], abs=1e-4)
    assert found == advantages({key: scores[key] for key in found}) and found["u_1_0"][3] > 0


def test_what_was_trained_of_other_agents_is_not_recorded(queue: Queue) -> None:
    from mcp_rollout.rollout.verl.trained_batch import dropped_segments, trained_segments

    found = list(trained_segments(queue.batch, step=3))
    assert [(each.trace, each.uid, each.sample) for each in found] == [("trace 0", "u", 0), ("trace 1", "u", 1)]
    assert [each.versions.tolist() for each in found] == [[1, 0, 1], [1, 0, 1, 1]]
    assert [each.advantages.tolist() for each in found] == [[0.0] * 3, [1.0] * 4]
    dropped = dropped_segments(dict.fromkeys(queue.samples, "stale"), step=3)
    assert [(each.trace, each.dropped) for each in dropped] == [("trace 0", "stale"), ("trace 1", "stale")]
    queue.samples = {key: each for key, each in queue.samples.items() if key.startswith("v")}
    assert list(trained_segments(queue.batch, step=3)) == []
