"""Makes the CPU the accelerator of verl in this process, and registers the engines that run on it.

configs/engine/cpu.yaml names this module first in VERL_USE_EXTERNAL_MODULES: verl's processes import it before any
module that asks for the platform, and the preflight imports it in the process that the user starts.
"""

from mcp_rollout.rollout.verl_cpu.platform import register

register()
