"""What MCP clients do when the line breaks: a server that breaks as planned, a workload for any client, and a judge.

    python -m lab.benchmarks.faults [--client NAME] [--fault NAME] [--page docs/reliability.md]

Read `plan.py` (which call meets which fault), `server.py` (what the fault is), `workload.py` (what every client is
asked to do), `judge.py` (what counts), then an adapter in `adapters/`. The server and the workload import nothing
outside the standard library, since each peer runs in an environment of its own.
"""
