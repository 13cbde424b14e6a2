"""Environments, tasks and rows: typed configuration, files, validation and start-up."""
