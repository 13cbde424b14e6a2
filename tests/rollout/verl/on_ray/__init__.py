"""A package, so that pytest has fixtures of it: its files share one Ray, and run in one process."""
