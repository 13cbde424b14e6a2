"""Playing environments without a trainer, and what it says about a policy."""
