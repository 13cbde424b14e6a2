"""Agents for environments to name in `agent`: each is one class in one file, written against `rollout.loop.turns`."""
