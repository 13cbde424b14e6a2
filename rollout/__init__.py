"""From a dataset row to a trace and a reward: the trajectory, its tokens, its record, the trainer adapters."""
