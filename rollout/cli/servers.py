"""`tools` and `tool-config`: what servers offer, without a trainer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from textwrap import wrap
from typing import Any, cast

import anyio
import typer
from rich.console import Console
from rich.text import Text

from gateway.catalogue.hidden_text import HiddenText, plain
from gateway.catalogue.names import policy_tools
from gateway.catalogue.tool_config import LockEntry, compare_locks, lock_entries, parse_entries, read_lock, write_lock
from gateway.errors import ConfigError, LockMismatch, raise_all
from gateway.types import Audience, ToolDefinition
from rollout.cli.target import Target, load_target
from rollout.cli.tokenizer_option import load_counter
from rollout.doctor.fidelity import TokenCounter
from rollout.environment.startup import opened, opened_where_possible
from rollout.trace.stats import STEP

_MESSAGES = 512
"""Tokens allowed for what stands in a prompt besides tools, where no row has been written yet."""
_NAME_WIDTH = 28
"""Columns for a tool's name; a longer one gets a line to itself, so that there is room for what it does."""


def list_tools(file: str, environments_dir: Path, *, tokenizer: str | None, as_json: bool) -> int:
    """Print what servers offer. What is wrong with the others is said on standard error, and makes the status 2."""
    target = load_target(file, environments_dir, all_valid=False)
    counter = load_counter(tokenizer)
    found = anyio.run(_look, target)
    if as_json:
        tools = [tool for definitions in found.catalogue.values() for tool in definitions]
        typer.echo(json.dumps([_tool_json(tool, found, counter) for tool in tools], ensure_ascii=False))
    elif found.catalogue:
        _print_tools(found, target)
        if counter is not None:
            _print_cost(found, counter)
    for server, findings in found.hidden_text.items():
        for finding in findings:
            typer.echo(f"warning: {target.source}: {target.key}.{server}: hidden text in {finding}", err=True)
    for problem in found.problems:
        typer.echo(f"error: {problem}", err=True)
    return 2 if found.problems else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    catalogue: dict[str, tuple[ToolDefinition, ...]]
    hidden_text: dict[str, tuple[HiddenText, ...]]
    problems: list[ConfigError]


async def _look(target: Target) -> _Found:
    """What those servers offer that run, and what is wrong with the others."""
    async with opened_where_possible(target.config, name="cli", source=target.source, key=target.key) as opened_now:
        gateway, problems = opened_now
        return _Found(
            catalogue=dict(gateway.catalogue),
            hidden_text=dict(gateway.hidden_text),
            problems=[*target.faults.values(), *problems],
        )


def _print_tools(found: _Found, target: Target) -> None:
    console = Console(highlight=False)
    for server, tools in found.catalogue.items():
        entry = target.config.servers[server]
        shown = sum(tool.audience is Audience.POLICY for tool in tools)
        counts = f"{shown} for the policy, {len(tools) - shown} for the harness"
        console.print(Text(f"{server}: {entry.kind}, scope {entry.scope}, {counts}", style="bold"))
        indent = 2 + min(max((len(tool.exposed_name) for tool in tools), default=0), _NAME_WIDTH) + 2
        for tool in tools:
            lines = wrap(_summary(tool), max(console.width - indent, 20))
            name = plain(f"  {tool.exposed_name}")
            if len(name) > indent - 2:
                console.print(Text(name))
                name = ""
            for line in lines:
                console.print(Text(f"{name:<{indent}}{line}"), no_wrap=True, crop=True)
                name = ""


def _print_cost(found: _Found, counter: TokenCounter) -> None:
    """What the policy's tools add to every prompt, and the length that prompts have to be allowed."""
    shown = policy_tools(found.catalogue)
    cost = counter.tools([tool.openai_schema() for tool in shown])
    if cost is None:
        raise ConfigError(
            "the chat template shows no tools", key="--tokenizer", remedy="name a model that was trained to call tools"
        )
    allowed = STEP * ceil((cost + _MESSAGES) / STEP)
    Console(highlight=False).print(
        f"\nThe {len(shown)} tools for the policy add {cost} tokens to every prompt. With {_MESSAGES} for a system "
        f"message and a task: data.max_prompt_length={allowed}. Rows may name fewer tools (`data --tools`)."
    )


def _summary(tool: ToolDefinition) -> str:
    """One tool in a line or two: its role if it is the harness's, its arguments, how its description begins."""
    required = cast("list[str]", tool.input_schema.get("required") or [])
    names = cast("dict[str, Any]", tool.input_schema.get("properties") or {})
    arguments = ", ".join(name if name in required else f"{name}?" for name in names)
    first = next(iter(tool.description.strip().splitlines()), "")
    return (f"[{tool.role}] " if tool.role else "") + f"({arguments}) " + plain(first)


def write_tool_config(files: list[str], environments_dir: Path, output: Path, *, accept: bool, as_json: bool) -> int:
    """Write the lock. Servers of a servers file that do not run are left out and named, and make the status 2."""
    if output.is_dir():
        raise ConfigError("is a directory", file=output, key="-o", remedy=f"name a file, as {output / 'tools.yaml'}")
    entries: list[dict[str, Any]] = []
    problems: list[ConfigError] = []
    for target in [load_target(file, environments_dir, all_valid=False) for file in files]:
        catalogue, wrong = anyio.run(_catalogue, target)
        if not catalogue:
            raise_all(wrong)
        problems += wrong
        name = target.environment.name if target.environment else None
        entries += lock_entries(catalogue, environment=name, source=target.source)
    for problem in problems:
        typer.echo(f"error: {problem}", err=True)
    if output.exists() and not accept:
        _refuse_changes(files, output, parse_entries(entries))
    write_lock(output, entries)
    if as_json:
        typer.echo(
            json.dumps({"path": str(output), "tools": len(entries), "left_out": [str(each) for each in problems]})
        )
    else:
        typer.echo(f"{output}: {len(entries)} tools")
        if problems:
            left_out = "without the servers above: mend or disable them before training, which starts the whole file"
            typer.echo(left_out, err=True)
    return 2 if problems else 0


async def _catalogue(target: Target) -> tuple[dict[str, tuple[ToolDefinition, ...]], list[ConfigError]]:
    """An environment without one of its servers is another one, so there each has to run."""
    if target.environment is not None:
        async with opened(target.config, name="cli", source=target.source) as gateway:
            return dict(gateway.catalogue), []
    found = await _look(target)
    return found.catalogue, found.problems


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


def _tool_json(tool: ToolDefinition, found: _Found, counter: TokenCounter | None) -> dict[str, Any]:
    hidden = [str(finding) for finding in found.hidden_text[tool.server] if finding.of == tool.name]
    return {
        "server": tool.server,
        "tool": tool.name,
        "name": tool.exposed_name,
        "audience": str(tool.audience),
        "role": str(tool.role) if tool.role else None,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "hash": tool.digest if tool.audience is Audience.POLICY else None,
        "hidden_text": hidden,
        "tokens": None if counter is None else counter.tools([tool.openai_schema()]),
    }
