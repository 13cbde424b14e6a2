"""The former place of `mcp_servers.kit.state`."""

from mcp_servers.kit.state import NO_TRAJECTORY, SEED_META, TRAJECTORY_META, TrajectoryState, seed_of, trajectory_of

__all__ = ["NO_TRAJECTORY", "SEED_META", "TRAJECTORY_META", "TrajectoryState", "seed_of", "trajectory_of"]
