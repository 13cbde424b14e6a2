"""Measurements that `mcp-rollout bench` runs, each in its own process, and the servers and peers that they use."""
