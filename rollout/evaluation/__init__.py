"""Play environments without a trainer, and estimate how good a policy is."""
