"""Runs untrusted Python in an isolated process. Linux only; needs no root; runs nothing if isolation fails.

`jail.run` is the parent's side; `child` is the process, which isolates itself before it runs the code. The modules
import the standard library alone, because a child starts for every run.
"""
