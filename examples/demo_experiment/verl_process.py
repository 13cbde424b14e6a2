"""verl's trainer as a process that ends with the block, together with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from demo_experiment.display import console

END_S = 60.0
"""How long verl may take to end Ray's processes, before all of them are killed."""
_VARIABLES = {"VERL_PLATFORM": "cpu", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


def end_on_sigterm() -> None:
    """Turn SIGTERM, which by default ends this process alone, into an exception that ends the commands that it runs."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


@contextmanager
def verl_training(overrides: Sequence[str], log: Path) -> Generator[subprocess.Popen[bytes], None, None]:
    """Print and start verl's trainer on the CPU with `configs/mcp_grpo.yaml`; its output goes to `log`."""
    arguments = ["--config-dir", "configs", "--config-name", "mcp_grpo", *overrides]
    line = "[bold green]$ VERL_PLATFORM=cpu python -m verl.trainer.main_ppo " + " \\\n    ".join(arguments)
    console.print(line, soft_wrap=True)  # so that it can be copied
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "verl.trainer.main_ppo", *arguments],
            env=os.environ | _VARIABLES,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End verl, and what is left of the processes that it started in its session."""
    process.terminate()
    try:
        process.wait(timeout=END_S)
    except subprocess.TimeoutExpired:
        console.print(f"verl did not end within {END_S:.0f} s and is killed")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
