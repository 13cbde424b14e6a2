"""Policies: what generates tokens for a trajectory."""
