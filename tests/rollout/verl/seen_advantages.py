"""verl's REINFORCE++, and beside it a record of what its v1 trainer handed to it and what it made of that.

Loaded into every verl process with VERL_USE_EXTERNAL_MODULES=seen_advantages; select it with
`algorithm.adv_estimator=seen_reinforce_plus_plus`. SEEN_ADVANTAGES names the file: a line for each sample.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_reinforce_plus_plus_outcome_advantage, register_adv_est


@register_adv_est("seen_reinforce_plus_plus")
def compute(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    advantages, returns = compute_reinforce_plus_plus_outcome_advantage(token_level_rewards, response_mask, **options)
    columns = {"rewards": token_level_rewards, "mask": response_mask, "advantages": advantages, "returns": returns}
    with Path(os.environ["SEEN_ADVANTAGES"]).open("a") as file:
        for row in range(len(token_level_rewards)):
            file.write(json.dumps({name: column[row].tolist() for name, column in columns.items()}) + "\n")
    return advantages, returns
