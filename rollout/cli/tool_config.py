"""`tool-config`: write the lock of the tools that the model sees."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import anyio
import typer

from mcp_rollout.gateway.catalogue.tool_config import (
    LockEntry,
    compare_locks,
    lock_entries,
    parse_entries,
    read_lock,
    write_lock,
)
from mcp_rollout.gateway.errors import ConfigError, LockMismatch, raise_all
from mcp_rollout.gateway.types import ToolDefinition
from mcp_rollout.rollout.cli.options import AsJson, EnvironmentsDir, Target, load_target, print_result
from mcp_rollout.rollout.cli.tools import list_offers
from mcp_rollout.rollout.environment.startup import opened_environment

app = typer.Typer(add_completion=False)


@app.command()
def tool_config(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="mcpServers files, or environments.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The lock file to write.")],
    accept: Annotated[bool, typer.Option("--accept", help="Overwrite a lock that differs.")] = False,
    as_json: AsJson = False,
    environments_dir: EnvironmentsDir = None,
) -> int:
    """Write the servers' policy tools as verl's tool_config, which locks what the model sees.

    An existing lock is compared: where tools differ, nothing is written, the difference is shown and the exit status is
    2, unless --accept is given. Servers of a servers file that do not start are left out, and make the exit status 2.
    """
    if output.is_dir():
        raise ConfigError("is a directory", file=output, key="-o", remedy=f"name a file, as {output / 'tools.yaml'}")
    entries: list[dict[str, Any]] = []
    problems: list[ConfigError] = []
    for target in [load_target(file, environments_dir, all_valid=False) for file in files]:
        catalogue, failed = anyio.run(_catalogue, target)
        if not catalogue:
            raise_all(failed)
        problems += failed
        name = target.environment.name if target.environment else None
        entries += lock_entries(catalogue, environment=name, source=target.source)
    for problem in problems:
        typer.echo(f"error: {problem}", err=True)
    if output.exists() and not accept:
        _refuse_changes(files, output, parse_entries(entries))
    write_lock(output, entries)
    record = {"path": str(output), "tools": len(entries), "left_out": [str(problem) for problem in problems]}
    print_result(record, f"{output}: {len(entries)} tools", as_json=as_json)
    if problems and not as_json:
        note = "without the servers above: correct or disable them before training, which starts the whole file"
        typer.echo(note, err=True)
    return 2 if problems else 0


async def _catalogue(target: Target) -> tuple[dict[str, tuple[ToolDefinition, ...]], list[ConfigError]]:
    """The tools by server, and the servers that failed; all servers of an environment have to start."""
    if target.environment is not None:
        async with opened_environment(target.environment) as gateway:
            return dict(gateway.catalogue), []
    offers = await list_offers(target)
    return offers.catalogue, offers.problems


def _refuse_changes(files: list[str], output: Path, entries: list[LockEntry]) -> None:
    """Raise LockMismatch with the difference between the existing lock and the one to be written."""
    command = f"`mcp-rollout tool-config {' '.join(files)} -o {output} --accept`"
    try:
        differences = compare_locks(read_lock(output), entries)
    except ConfigError as error:
        remedy = f"to overwrite it: {command}"
        raise ConfigError(error.problem, file=error.file or output, key=error.key, remedy=remedy) from error
    if differences:
        raise LockMismatch(
            "differs from what the servers offer now:\n" + "\n".join(differences) + "\n",
            file=output,
            remedy=f"review the difference and accept it with {command}",
        )
