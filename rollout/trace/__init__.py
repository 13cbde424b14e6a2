"""The record of a trajectory, on disk and for people."""
