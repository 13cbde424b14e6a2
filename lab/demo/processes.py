"""The commands that the examples run, as processes that end with what started them, also at SIGTERM."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from lab.demo.display import console

END_S = 60.0
"""How long a process may take to end by itself, before it is killed."""
VARIABLES_KEY = "ray_kwargs.ray_init.runtime_env.env_vars"
"""verl's key of the environment variables of Ray's processes."""
_VARIABLES = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


def end_on_sigterm() -> None:
    """Turn SIGTERM, which by default ends this process alone, into an exception that ends the commands that it runs."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def command(*arguments: str | Path) -> None:
    """Print a `mcp-rollout` command as a user would type it, and run it. Raises CalledProcessError."""
    given = [str(argument) for argument in arguments]
    console.print(f"[bold green]$ mcp-rollout {shlex.join(given)}[/bold green]")
    with child([Path(sys.executable).with_name("mcp-rollout"), *given]) as process:
        process.wait()
    subprocess.CompletedProcess(process.args, process.returncode).check_returncode()
    console.print()


@contextmanager
def verl_training(overrides: Sequence[str], log: Path) -> Generator[subprocess.Popen[bytes], None, None]:
    """Print and start verl's trainer on the CPU with `configs/mcp_grpo.yaml`; its output goes to `log`."""
    arguments = ["--config-dir", "configs", "--config-name", "mcp_grpo", *overrides]
    line = "[bold green]$ python -m verl.trainer.main_ppo " + " \\\n    ".join(arguments)
    console.print(line, soft_wrap=True)  # so that it can be copied
    trainer = [sys.executable, "-m", "verl.trainer.main_ppo", *arguments]
    # Of Ray's processes some would outlive verl; they are in its session.
    with log.open("wb") as output, child(trainer, output=output, env=os.environ | _VARIABLES, own_session=True) as verl:
        yield verl


@contextmanager
def child(
    arguments: Sequence[str | Path],
    *,
    output: IO[bytes] | None = None,
    env: Mapping[str, str] | None = None,
    own_session: bool = False,
) -> Generator[subprocess.Popen[bytes], None, None]:
    """Start a process in the main thread, and end it with the block.

    Args:
        arguments: the program, and what it is given.
        output: receives what it writes; by default this process's own streams do.
        env: its environment variables; by default this process's.
        own_session: start it in a session of its own, all of which ends with the block.
    """
    with ExitStack() as stack:
        with _sigterm_deferred():
            errors = None if output is None else subprocess.STDOUT
            process = subprocess.Popen(arguments, env=env, stdout=output, stderr=errors, start_new_session=own_session)
            stack.callback(_end, process, own_session)
        yield process


@contextmanager
def _sigterm_deferred() -> Generator[None, None, None]:
    """Handle SIGTERM after the block: an exception before a new process has an owner would leave it running."""
    received: list[int] = []
    handler = signal.signal(signal.SIGTERM, lambda number, _frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        if received:
            signal.raise_signal(signal.SIGTERM)


def _end(process: subprocess.Popen[bytes], own_session: bool) -> None:
    process.terminate()
    try:
        process.wait(timeout=END_S)
    except subprocess.TimeoutExpired:
        console.print(f"process {process.pid} did not end within {END_S:.0f} s and is killed")
    finally:
        process.kill()
        if own_session:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
