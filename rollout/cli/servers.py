"""`tools`, `tool-config` and `call`: what servers offer, without a trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import anyio
import typer
from rich.console import Console
from rich.table import Table

from gateway.errors import ConfigError, LockMismatch
from gateway.tool_config import LockEntry, compare_locks, lock_entries, parse_entries, read_lock, write_lock
from gateway.types import Audience, ToolDefinition
from rollout.cli.target import Target, load_target
from rollout.startup import opened


def list_tools(file: str, environments_dir: Path, *, as_json: bool) -> int:
    target = load_target(file, environments_dir)
    catalogue = anyio.run(_catalogue, target)
    tools = [tool for definitions in catalogue.values() for tool in definitions]
    if as_json:
        typer.echo(json.dumps([_tool_json(tool) for tool in tools], ensure_ascii=False))
        return 0
    table = Table()
    for column in ("server", "tool", "audience"):
        table.add_column(column, no_wrap=True)
    table.add_column("arguments and description")
    for tool in tools:
        arguments = ", ".join(tool.input_schema.get("properties", {}))
        summary = tool.description.split("\n")[0]
        table.add_row(tool.server, tool.exposed_name, tool.role or tool.audience, f"({arguments}) {summary}")
    Console().print(table)
    return 0


def write_tool_config(files: list[str], environments_dir: Path, output: Path, *, accept: bool, as_json: bool) -> int:
    entries: list[dict[str, Any]] = []
    for target in [load_target(file, environments_dir) for file in files]:
        name = target.environment.name if target.environment else None
        entries += lock_entries(anyio.run(_catalogue, target), environment=name, source=target.source)
    if output.exists() and not accept:
        _refuse_changes(files, output, parse_entries(entries))
    write_lock(output, entries)
    if as_json:
        typer.echo(json.dumps({"path": str(output), "tools": len(entries)}))
    else:
        typer.echo(f"{output}: {len(entries)} tools")
    return 0


def _refuse_changes(files: list[str], output: Path, entries: list[LockEntry]) -> None:
    """Raises LockMismatch with the difference between the lock that is there and the one to be written."""
    command = f"`mcp-rollout tool-config {' '.join(files)} -o {output} --accept`"
    try:
        differences = compare_locks(read_lock(output), entries)
    except ConfigError as error:
        remedy = f"to write over it: {command}"
        raise ConfigError(error.problem, file=error.file or output, key=error.key, remedy=remedy) from error
    if differences:
        raise LockMismatch(
            "differs from what the servers say now:\n" + "\n".join(differences) + "\n",
            file=output,
            remedy=f"review the difference and accept it with {command}",
        )


def call_tool(
    file: str, environments_dir: Path, tool: str, arguments: str, *, task: str | None, seed: int, as_json: bool
) -> int:
    try:
        parsed: Any = json.loads(arguments)
    except json.JSONDecodeError as error:
        raise ConfigError(f"the arguments are not JSON: {error}", key=tool, remedy="give a JSON object") from error
    if not isinstance(parsed, dict):
        raise ConfigError("the arguments are not a JSON object", key=tool, remedy='for example {"x": 1}')
    target = load_target(file, environments_dir)
    return anyio.run(_call, target, tool, cast("dict[str, Any]", parsed), task, seed, as_json)


async def _catalogue(target: Target) -> dict[str, tuple[ToolDefinition, ...]]:
    async with opened(target.config, name="cli", source=target.source) as gateway:
        return dict(gateway.catalogue)


async def _call(
    target: Target, tool: str, arguments: dict[str, Any], task: str | None, seed: int, as_json: bool
) -> int:
    async with (
        opened(target.config, name="cli", source=target.source) as gateway,
        gateway.lease(trajectory=uuid4().hex, task=task, seed=seed) as session,
    ):
        if tool not in session.tools:
            raise ConfigError("no such tool", key=tool, remedy=f"tools: {', '.join(sorted(session.tools))}")
        result = await session.call(tool, arguments)
    if as_json:
        structured = dict(result.structured) if result.structured is not None else None
        record = {"text": result.text, "structured": structured, "is_error": result.is_error, "reward": result.reward}
        typer.echo(json.dumps(record | {"elapsed_s": result.elapsed_s}, ensure_ascii=False))
    else:
        typer.echo(result.text)
    return int(result.is_error)


def _tool_json(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "server": tool.server,
        "tool": tool.name,
        "name": tool.exposed_name,
        "audience": str(tool.audience),
        "role": str(tool.role) if tool.role else None,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "hash": tool.digest if tool.audience is Audience.POLICY else None,
    }
