"""Measurements that `mcp-rollout bench` runs on a user's servers, each in its own process."""
