"""Commands as a user would type them, shown before they run, and progress while something long does."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

console = Console(highlight=False)


def command(*arguments: str | Path) -> None:
    """Run `mcp-rollout`."""
    given = [str(argument) for argument in arguments]
    console.print(f"[bold green]$ mcp-rollout {shlex.join(given)}[/bold green]")
    subprocess.run([Path(sys.executable).with_name("mcp-rollout"), *given], check=True)
    console.print()


@contextmanager
def bar(description: str, total: int) -> Iterator[tuple[Progress, TaskID]]:
    """A progress bar for as long as the block lasts."""
    count = TextColumn("{task.completed}/{task.total} steps")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), count, TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        yield progress, progress.add_task(description, total=total)
