"""The record of a trajectory: in memory, on disk, and as text."""
