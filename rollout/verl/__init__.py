"""Adapter for verl: agent loop, tool class, replay buffers and preflight."""
