"""verl's own policy loss and optimizer, and beside them a record of each update.

Loaded into every verl process with VERL_USE_EXTERNAL_MODULES=seen_updates; select the loss with
`actor_rollout_ref.actor.policy_loss.loss_mode=seen_vanilla`. SEEN_UPDATES names the file: a line for each micro-batch,
and one for each optimizer step.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla, register_policy_loss


def _write(**values: Any) -> None:
    with Path(os.environ["SEEN_UPDATES"]).open("a") as file:
        file.write(json.dumps(values) + "\n")


@register_policy_loss("seen_vanilla")
def loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    **own: Any,
) -> Any:
    moved = ((log_prob - old_log_prob).abs() * response_mask).detach()
    _write(
        moved=moved.max(dim=1).values.tolist(),
        advantages=(advantages.abs() * response_mask).max(dim=1).values.tolist(),
        trained=response_mask.sum(dim=1).tolist(),
        global_batch_size=own["config"].global_batch_info["global_batch_size"],
    )
    return compute_policy_loss_vanilla(old_log_prob, log_prob, advantages, response_mask, **own)


_step = torch.optim.AdamW.step


def step(self: torch.optim.AdamW, *args: Any, **kwargs: Any) -> Any:
    _write(optimizer_step=True)
    return _step(self, *args, **kwargs)


torch.optim.AdamW.step = step  # type: ignore[method-assign]
