"""Continuous batching with a transformers model: what the CPU trainer and `--engine DIRECTORY` share."""
