"""Parts of your own in a training: a policy loss, a sampler, and a manager of the agent workers.

verl registers or names each; none needs a change of verl or of this package. docs/own_parts.md has the keys.
"""

from __future__ import annotations

from typing import Any

import structlog
import torch
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss

from mcp_rollout.rollout.verl.agent_loop import MCPAgentLoopManager
from mcp_rollout.rollout.verl.replay_buffer import MCPReplayBuffer

log = structlog.get_logger(__name__)


@register_policy_loss("cispo_like")  # pyright: ignore[reportArgumentType]  # verl's own losses differ from its type
def clipped_weights(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """A policy gradient whose importance weights are clipped from above and carry no gradient.

    All tensors are [samples, response_length]. `actor_rollout_ref.actor.clip_ratio_high` is the bound.
    """
    ratio = (log_prob - old_log_prob).clamp(-20, 20).exp().detach()
    bound = 1 + (config.clip_ratio_high if config.clip_ratio_high is not None else config.clip_ratio)
    losses = -advantages * ratio.clamp(max=bound) * log_prob
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    loss = agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)
    share = ((ratio > bound) * response_mask).sum() / response_mask.sum().clamp(min=1)
    return loss, {"actor/clipped_share": share.item()}


class FullGroupsFirst(MCPReplayBuffer):
    """Takes groups with the most trajectories first, among those that are ready."""

    def _select_prompt_uids(self, partition_id: str, sampleable_keys: set[str], batch_size: int) -> Any:
        uids, trajectories, steps = super()._select_prompt_uids(partition_id, sampleable_keys, len(sampleable_keys))
        size = {uid: sum(key.startswith(f"{uid}_") for key in trajectories) for uid in uids}
        return sorted(uids, key=lambda uid: -size[uid])[:batch_size], trajectories, steps


class AnnouncingManager(MCPAgentLoopManager):
    """Logs what is issued to the workers; the place to start what all of them share."""

    def generate_sequences(self, prompts: Any) -> None:
        log.info("prompts issued", prompts=len(prompts), workers=len(self.agent_loop_workers))
        super().generate_sequences(prompts)
