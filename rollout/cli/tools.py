"""`tools`: list the tools that the policy and the harness see."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from textwrap import wrap
from typing import Any, cast

import anyio
import typer
from rich.text import Text

from mcp_rollout.gateway.catalogue.hidden_text import HiddenText, plain
from mcp_rollout.gateway.catalogue.names import policy_tools
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.types import Audience, ToolDefinition
from mcp_rollout.rollout.cli.option_models import with_option_models
from mcp_rollout.rollout.cli.options import (
    AsJson,
    Counting,
    EnvironmentsDir,
    File,
    Target,
    load_target,
    print_json,
)
from mcp_rollout.rollout.cli.output import Console
from mcp_rollout.rollout.environment.startup import opened_where_possible
from mcp_rollout.rollout.tokens.chat_template import ChatTemplate
from mcp_rollout.rollout.trace.stats import STEP

_MESSAGES = 512
"""Tokens allowed for a prompt's messages, for the recommended prompt length."""
_NAME_WIDTH = 28
"""Columns for a tool's name; a longer name gets its own line."""
_BREAKS = {ord("\t"): "<U+0009>", ord("\n"): "<U+000A>"}
"""Not hidden, and in a name they would look like another tool's line."""

app = typer.Typer(add_completion=False)


@app.command()
@with_option_models
def tools(file: File, counting: Counting, as_json: AsJson = False, environments_dir: EnvironmentsDir = None) -> int:
    """List the tools that servers offer, as the policy and the harness see them.

    Exit status 2 where a server does not start; the others are listed all the same.
    """
    target = load_target(file, environments_dir, all_valid=False)
    counter = counting.template()
    offers = anyio.run(list_offers, target)
    if as_json:
        definitions = [tool for definitions in offers.catalogue.values() for tool in definitions]
        print_json([_record(tool, offers, counter) for tool in definitions])
    elif offers.catalogue:
        _print_tools(offers, target)
        if counter is not None:
            _print_cost(offers, counter)
    for server, findings in offers.hidden_text.items():
        for finding in findings:
            typer.echo(f"warning: {target.source}: {target.key}.{server}: hidden text in {finding}", err=True)
    for problem in offers.problems:
        typer.echo(f"error: {problem}", err=True)
    return 2 if offers.problems else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Offers:
    """The tools of the servers that start, and the problems of the others."""

    catalogue: dict[str, tuple[ToolDefinition, ...]]
    hidden_text: dict[str, tuple[HiddenText, ...]]
    problems: list[ConfigError]


async def list_offers(target: Target) -> Offers:
    async with opened_where_possible(target.config, name="cli", source=target.source, key=target.key) as started:
        gateway, problems = started
        return Offers(
            catalogue=dict(gateway.catalogue),
            hidden_text=dict(gateway.hidden_text),
            problems=[*target.faults.values(), *problems],
        )


def _print_tools(offers: Offers, target: Target) -> None:
    console = Console()
    for server, definitions in offers.catalogue.items():
        entry = target.config.servers[server]
        shown = sum(tool.audience is Audience.POLICY for tool in definitions)
        counts = f"{shown} for the policy, {len(definitions) - shown} for the harness"
        console.print(Text(f"{server}: {entry.kind}, scope {entry.scope}, {counts}", style="bold"))
        indent = 2 + min(max((len(tool.exposed_name) for tool in definitions), default=0), _NAME_WIDTH) + 2
        for tool in definitions:
            lines = wrap(_summary(tool), max(console.width - indent, 20))
            name = plain(f"  {tool.exposed_name}").translate(_BREAKS)
            if len(name) > indent - 2:
                console.print(Text(name))
                name = ""
            for line in lines:
                console.print(Text(f"{name:<{indent}}{line}"), no_wrap=True, crop=True)
                name = ""


def _print_cost(offers: Offers, counter: ChatTemplate) -> None:
    """Print what the policy's tools add to every prompt, and the prompt length that allows for it."""
    shown = policy_tools(offers.catalogue)
    cost = counter.count_tools([tool.openai_schema() for tool in shown])
    if cost is None:
        remedy = "name a model that was trained to call tools, or give a --chat-template"
        raise ConfigError("the chat template shows no tools", key="--tokenizer", remedy=remedy)
    allowed = STEP * ceil((cost + _MESSAGES) / STEP)
    Console().print(
        f"\nThe {len(shown)} tools for the policy add {cost} tokens to every prompt. With {_MESSAGES} for a system "
        f"message and a task: data.max_prompt_length={allowed}. Rows may name fewer tools (`data --tools`)."
    )


def _summary(tool: ToolDefinition) -> str:
    """One tool in a line or two: the role of a harness tool, the arguments, the first line of the description."""
    required = cast("list[str]", tool.input_schema.get("required") or [])
    names = cast("dict[str, Any]", tool.input_schema.get("properties") or {})
    arguments = ", ".join(name if name in required else f"{name}?" for name in names)
    first = next(iter(tool.description.strip().splitlines()), "")
    return (f"[{tool.role}] " if tool.role else "") + f"({arguments}) " + plain(first)


def _record(tool: ToolDefinition, offers: Offers, counter: ChatTemplate | None) -> dict[str, Any]:
    return {
        "server": tool.server,
        "tool": tool.name,
        "name": tool.exposed_name,
        "audience": str(tool.audience),
        "role": str(tool.role) if tool.role else None,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "hash": tool.digest if tool.audience is Audience.POLICY else None,
        "hidden_text": [str(found) for found in offers.hidden_text[tool.server] if found.of == tool.name],
        "tokens": None if counter is None else counter.count_tools([tool.openai_schema()]),
    }
