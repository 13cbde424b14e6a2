"""verl on a machine without an accelerator: a `cpu` platform and the rollout engine `transformers_cpu`."""

ROLLOUT_NAME = "transformers_cpu"
"""Value of `actor_rollout_ref.rollout.name` for our engine, and its key under `rollout.engine_kwargs`."""
