"""The demo's parts. Importing them comes before importing torch, which reads this variable as it is loaded."""

import os

# Threads that wait for each other sleep instead of spinning: where other programs use the cores too, spinning made
# a training step take four times the CPU time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
