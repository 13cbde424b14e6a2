"""Worlds for trajectories: places, pools, sessions, and nothing left behind."""
