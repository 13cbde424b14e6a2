"""Programs that others wrote, as agents: each gets a model endpoint and its trajectory's world."""
