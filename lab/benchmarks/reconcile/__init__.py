"""Many trajectories under faults at every boundary, reconciled at the end: nothing lost, nothing twice, nothing left.

    python -m lab.benchmarks.reconcile [--rows 100] [--seed 1] [--only LANE] [--page docs/reliability.md]

Read `plan.py` (the policy's script and the faults of each row), `server.py` (the worlds), `engine.py` (the policy, and
faults inside the run's process), `drive.py` (rounds of `mcp-rollout run --resume`, and what is killed meanwhile), then
`reconcile.py` (what has to agree at the end).
"""
