"""Python from strangers, run in a process that can reach nothing: Linux only, without root, and closed where it fails.

`run` in `jail` is the parent's side; `inside` is what the child does to itself before it runs anything. Nothing here
imports more than the standard library, since the child starts for every run.
"""
