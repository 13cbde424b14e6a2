"""From a dataset row to a trace and a reward: the trajectory, its tokens, its record, the trainer adapters."""

from mcp_rollout_start import check_names

check_names()  # also in a trainer's processes, which import this package without `mcp-rollout`
