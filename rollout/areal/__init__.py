"""The adapter for AReaL. `workflow` plays trajectories, `train` is the entry point of a run."""
