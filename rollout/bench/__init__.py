"""Measurements that `mcp-rollout bench` runs, each in a process of its own, and the servers and peers that they use."""
