"""From a dataset row to a trace and a reward: the trajectory, its tokens, its record, and the adapters to trainers."""
