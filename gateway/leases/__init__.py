"""Worlds for trajectories: slots, pools, sessions, and nothing left behind."""
