"""Adapter for verl: agent loop, tool class, replay buffers, trainer and preflight."""
