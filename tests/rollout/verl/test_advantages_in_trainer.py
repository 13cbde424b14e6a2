"""Advantages by turn as the trainer computes them: from TransferQueue, through verl's own code, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

pytestmark = [
    pytest.mark.verl,
    pytest.mark.usefixtures("imported_verl"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),  # of torch about nested tensors
]

CONFIGS = Path(__file__).parents[3] / "configs"


def trainer(estimator: str) -> Any:
    """Our trainer with its configuration alone."""
    from rollout.verl.settings import AdvantagesConfig
    from rollout.verl.trainer import MCPTrainer

    made = object.__new__(MCPTrainer)
    with initialize_config_dir(str(CONFIGS), version_base=None):
        made.config = compose(
            "mcp_grpo",
            overrides=["hydra.searchpath=[pkg://verl.trainer.config]", f"algorithm.adv_estimator={estimator}"],
        )
    made._advantages = AdvantagesConfig()
    return made


def of_turns(lengths: list[int]) -> Any:
    """By token, the turn that it belongs to: an unsampled token follows each turn but the last."""
    import torch

    found: list[int] = []
    for turn, length in enumerate(lengths):
        found += [turn] * length + ([-1] if turn < len(lengths) - 1 else [])
    return torch.tensor(found)


@pytest.mark.usefixtures("transfer_queue")
@pytest.mark.parametrize("estimator", ["grpo", "tree_grpo", "step_grpo"])
def test_advantages_by_turn_go_through_verls_own_code(estimator: str) -> None:
    """A tree of three leaves and a chain of the same row, and a row that fills the batch up."""
    import torch
    import transfer_queue as tq
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    made = trainer(estimator)
    leaves = {  # by key: tree, shared turns, tokens of each turn, score, anchors
        "u_0_0": ("t0", 0, [2, 1, 2], 1.0, ["start", "a", "b"]),
        "u_1_0": ("t1", 0, [1, 1], 0.0, ["start", "start"]),
        "u_2_0": ("t0", 1, [2, 3], 0.5, ["start", "a"]),
        "u_3_0": ("t0", 2, [2, 1, 1], 0.25, ["start", "a", "b"]),
        "pad_0_0": ("t0", 0, [1], 0.0, ["start"]),
    }
    rows: list[dict[str, Any]] = []
    for key, (tree, shared, lengths, score, anchors) in leaves.items():
        turns = of_turns(lengths)
        mask = (turns >= 0).long() * (not key.startswith("pad"))
        rewards = torch.zeros(len(turns))
        rewards[-1] = score
        of_trajectory = {"turns": len(lengths), "tree": tree, "shared_turns": shared, "rewards": [], "anchors": anchors}
        logprobs = {"rollout_log_probs": torch.zeros(len(turns)), "old_log_probs": torch.zeros(len(turns))}
        rows.append(
            {
                "uid": key.split("_")[0],
                "response_mask": mask,
                "rm_scores": rewards,
                "mcp_turns": turns,
                "mcp": of_trajectory,
                **logprobs,
            }
        )
    order = [3, 4, 0, 2, 1]
    keys = [list(leaves)[at] for at in order]
    tags = [{"is_padding": key.startswith("pad")} for key in keys]
    fields = list_of_dict_to_tensordict([rows[at] for at in order])
    tq.kv_batch_put(keys=keys, partition_id="train", fields=fields, tags=tags)
    metrics: dict[str, Any] = {}
    made._compute_advantage(tq.KVBatchMeta(partition_id="train", keys=keys, tags=tags), metrics)
    data = tq.kv_batch_get(list(leaves), "train", select_fields=["advantages", "response_mask"])
    found = {
        key: [value for value, mask in zip(row.tolist(), own.tolist(), strict=True) if mask]
        for key, row, own in zip(leaves, data["advantages"], data["response_mask"], strict=True)
    }
    assert found["pad_0_0"] == []
    scores = torch.tensor([1.0, 0.0, 0.5, 0.25])
    scale = scores.std() + 1e-6
    grpo = {key: float((leaves[key][3] - scores.mean()) / scale) for key in found if key != "pad_0_0"}
    wanted = {key: [value] * sum(leaves[key][2]) for key, value in grpo.items()}
    if estimator == "tree_grpo":
        # Below turn 1 are all three leaves, below turn 2 the root and the third.
        at_1, at_2 = (1.0 + 0.5 + 0.25) / 3, (1.0 + 0.25) / 2
        for key, baselines in {"u_0_0": [at_1, at_2], "u_2_0": [at_1], "u_3_0": [at_1, at_2]}.items():
            of_leaf = [grpo[key] / 2 + (leaves[key][3] - mean) / float(scale) / 2 for mean in baselines]
            by_turn = zip([grpo[key], *of_leaf], leaves[key][2], strict=True)
            wanted[key] = [value for value, length in by_turn for _ in range(length)]
    elif estimator == "step_grpo":
        # The score is the return of every turn, so a state's baseline is the mean of those who came to it, as often.
        came = {
            "start": torch.tensor([1.0, 0.0, 0.0, 0.5, 0.25]),
            "a": torch.tensor([1.0, 0.5, 0.25]),
            "b": torch.tensor([1.0, 0.25]),
        }
        for key, value in grpo.items():
            steps = [
                value + float((leaves[key][3] - came[anchor].mean()) / (came[anchor].std() + 1e-6))
                if anchor in came
                else value
                for anchor in leaves[key][4]
            ]
            wanted[key] = [step for step, length in zip(steps, leaves[key][2], strict=True) for _ in range(length)]
    for key, values in wanted.items():
        assert found[key] == pytest.approx(values, abs=1e-4), key
