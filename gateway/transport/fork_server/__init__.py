"""Imports a Python server's modules once and forks a process for each lease; run by path, see `__main__.py`."""
