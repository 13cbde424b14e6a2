"""Our samples in verl's own losses as each recipe sets them: what a sum and a ratio count, what a mask takes out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
import torch
from mcp.server.mcpserver import MCPServer
from omegaconf import DictConfig, OmegaConf
from torch.nn.utils.rnn import pad_sequence
from verl_config import CONFIGS, composed
from worlds import ROLE, play, saying

from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.types import Call

pytestmark = [pytest.mark.verl, pytest.mark.anyio, pytest.mark.usefixtures("imported_verl")]

CALL = hermes.write(calls=[Call(name="look", arguments={"at": "sky"})])
RECIPES = ["", "dapo", "dr_grpo", "gspo", "cispo", "tis"]
SCORES = {"chain": 1.0, "single_turn": 0.25, "cut": 0.0}
"""Of the trajectories of a group: with one sample, with two, and one that `overlong: mask` took out of the loss."""


@dataclass(frozen=True)
class Batch:
    keys: list[str]
    mask: torch.Tensor  # [samples, response]
    rewards: torch.Tensor  # [samples, response]
    old: torch.Tensor
    """The trainer's log-probabilities before the update; of a tool's tokens, too."""  # [samples, response]

    def rows(self, trajectory: str) -> list[int]:
        number = list(SCORES).index(trajectory)
        return [row for row, key in enumerate(self.keys) if key.split("_")[1] == str(number)]


def server() -> MCPServer:
    made = MCPServer("world", log_level="ERROR")

    @made.tool()
    async def look(at: str) -> str:
        return f"The {at} is blue."

    @made.tool(name="score", meta={ROLE: "score"})
    async def score(messages: list[dict[str, Any]]) -> dict[str, Any]:
        last = messages[-1]
        return {"score": float(last["content"]) if last["role"] == "assistant" else 0.0, "parts": {}}

    return made


@pytest.fixture
async def batch(tmp_path: Path) -> Batch:
    """Played by the library, and as its verl worker gives them to verl."""
    from mcp_rollout.rollout.verl.output import to_outputs

    keys: list[str] = []
    columns: dict[str, list[Any]] = {"response_mask": [], "rm_scores": []}
    for number, (name, score) in enumerate(SCORES.items()):
        trace = await play(
            {"world": server()},
            saying(CALL, CALL if name == "cut" else str(score)),
            tmp_path,
            limits=Limits(response_tokens=5000, assistant_turns=2),
            reward={"server": "world"},
            filters={"overlong": "mask"},
            strategy=name if name == "single_turn" else "chain",
        )
        assert trace.reward is not None and trace.reward.score == score
        for output, sample in enumerate(to_outputs(trace, ())):
            keys.append(f"group_{number}_{output}")
            for column, values in columns.items():
                values.append(torch.as_tensor(sample.as_dict()[column], dtype=torch.float32))
    mask, rewards = (pad_sequence(values, batch_first=True) for values in columns.values())
    old = -torch.rand(mask.shape, generator=torch.Generator().manual_seed(0)) - 0.1
    return Batch(keys, mask, rewards, old)


@cache
def base() -> DictConfig:
    config = composed(Path("model"))
    OmegaConf.set_struct(config, False)
    return config


def gradients(
    recipe: str, batch: Batch, moved: torch.Tensor | None = None, sampled: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages, and the loss's gradient in the log-probabilities.

    Args:
        moved: how much earlier updates of the step moved the log-probabilities.  # [samples, response]
        sampled: the engine's log-probabilities.  # [samples, response]
    """
    from verl.protocol import DataProto
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
    from verl.utils.config import omega_conf_to_dataclass

    config: Any = OmegaConf.merge(base(), OmegaConf.load(CONFIGS / "recipe" / f"{recipe}.yaml") if recipe else {})
    actor: Any = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    columns: dict[str, Any] = {
        "token_level_rewards": batch.rewards,
        "response_mask": batch.mask,
        "old_log_probs": batch.old,
    }
    data = DataProto.from_single_dict(columns | {"rollout_log_probs": batch.old if sampled is None else sampled})
    data.non_tensor_batch["uid"] = np.array(["group"] * len(batch.keys), dtype=object)
    data, _ = compute_rollout_correction_and_add_to_batch(data, config.algorithm.rollout_correction)
    data = compute_advantage_for_multi_trajectories(
        data,
        batch.keys,
        "grpo",
        norm_adv_by_std_in_grpo=config.algorithm.norm_adv_by_std_in_grpo,
        config=config.algorithm,
    )
    # As `ppo_loss` and our trainer say it: the samples that verl adds to fill up a batch do not count.
    actor.global_batch_info.update(
        dp_size=1,
        batch_num_tokens=int(batch.mask.sum()),
        global_batch_size=len(batch.keys),
        loss_scale_factor=actor.loss_scale_factor,
    )
    now = (batch.old if moved is None else batch.old + moved).clone().requires_grad_()
    loss, _ = get_policy_loss_fn(actor.policy_loss.loss_mode)(
        old_log_prob=batch.old,
        log_prob=now,
        advantages=data.batch["advantages"],
        response_mask=data.batch["response_mask"].bool(),
        loss_agg_mode=actor.loss_agg_mode,
        config=actor,
        rollout_is_weights=data.batch.get("rollout_is_weights"),
    )
    loss.backward()
    assert now.grad is not None
    return data.batch["advantages"], -now.grad


@pytest.mark.parametrize("recipe", RECIPES)
async def test_each_loss_counts_sampled_tokens_and_a_trajectory_once_in_its_groups_mean(
    recipe: str, batch: Batch
) -> None:
    advantages, gradient = gradients(recipe, batch)
    assert [len(batch.rows(name)) for name in SCORES] == [1, 2, 1]
    mean, scale = fmean(SCORES.values()), 1.0 if recipe == "dr_grpo" else stdev(SCORES.values())
    for name, score in SCORES.items():
        for row in batch.rows(name):
            tokens = batch.mask[row].sum().item()
            assert (tokens == 0) == (name == "cut")
            expected = (score - mean) / scale * batch.mask[row]
            assert torch.allclose(advantages[row], expected, atol=1e-4)
            weight = {
                "dr_grpo": 1 / (len(batch.keys) * 8192),  # the same for each token, in whichever sample it is
                "gspo": 1 / (len(batch.keys) * max(tokens, 1)),  # a sample has one vote
            }.get(recipe, 1 / batch.mask.sum().item())
            assert torch.allclose(gradient[row], expected * weight, rtol=1e-3, atol=1e-9)
    # The tool's answer is within a sample of the chain.
    assert 0 in batch.mask[0, : int(batch.mask[0].nonzero().max())]


@pytest.mark.parametrize("recipe", RECIPES)
async def test_a_clip_acts_on_tokens_or_on_one_sample_and_what_tools_wrote_moves_none(
    recipe: str, batch: Batch
) -> None:
    """The chain, which leads, has become 1.25 times as likely, and one sample of the other 0.75 times."""
    advantages, before = gradients(recipe, batch)
    (chain,), (first, second) = batch.rows("chain"), batch.rows("single_turn")
    moved = 3.0 * (1 - batch.mask)
    moved[chain] += log(1.25) * batch.mask[chain]
    moved[first] += log(0.75) * batch.mask[first]
    _, after = gradients(recipe, batch, moved)
    assert advantages[chain].max() > 0 > advantages[first].min()
    up, down = {"dapo": (1.25, 0.0), "cispo": (1.2, 0.75)}.get(recipe, (0.0, 0.0))
    for row, factor in ((chain, up), (first, down), (second, 1.0)):
        assert torch.allclose(after[row], before[row] * factor, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("recipe", ["", "tis"])
async def test_a_correction_weighs_what_was_sampled_with_another_probability_at_most_twofold(
    recipe: str, batch: Batch
) -> None:
    _, before = gradients("", batch)
    (chain,), (first, second) = batch.rows("chain"), batch.rows("single_turn")
    sampled = batch.old * batch.mask  # as our samples have it: 0 where nothing was sampled
    sampled[chain] -= log(3.0) * batch.mask[chain]
    sampled[first] -= log(0.5) * batch.mask[first]
    _, after = gradients(recipe, batch, sampled=sampled)
    for row, factor in ((chain, 2.0), (first, 0.5), (second, 1.0)):
        assert torch.allclose(after[row], before[row] * (factor if recipe else 1.0), rtol=1e-3, atol=1e-9)
