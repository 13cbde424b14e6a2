"""Registers the engine `transformers_cpu` with verl, and no platform: for a trainer on a GPU.

verl's processes import it by VERL_USE_EXTERNAL_MODULES, which configs/engine/transformers.yaml sets.
"""

from mcp_rollout.rollout.verl_cpu import ROLLOUT_NAME
from mcp_rollout.rollout.verl_cpu.platform import register_rollouts

register_rollouts(ROLLOUT_NAME)
