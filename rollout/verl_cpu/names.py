"""What verl and Ray know this engine by."""

ROLLOUT_NAME = "transformers_cpu"
"""The value of `actor_rollout_ref.rollout.name`, and the key under `rollout.engine_kwargs`."""
