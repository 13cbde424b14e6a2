"""`call`: one tool, once, without a trainer."""

from __future__ import annotations

import json
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import anyio
import typer

from gateway.catalogue.names import policy_tools
from gateway.config.models import GatewayConfig
from gateway.config.pydantic_errors import near
from gateway.errors import ConfigError, one_error
from gateway.gateway import Gateway
from rollout.cli.target import Target, load_target
from rollout.environment.startup import opened_where_possible


def call_tool(
    file: str, environments_dir: Path, tool: str, arguments: str, *, task: str | None, seed: int, as_json: bool
) -> int:
    try:
        parsed: Any = json.loads(arguments)
    except json.JSONDecodeError as error:
        raise ConfigError(f"the arguments are not JSON: {error}", key=tool, remedy="give a JSON object") from error
    if not isinstance(parsed, dict):
        raise ConfigError("the arguments are not a JSON object", key=tool, remedy='for example {"x": 1}')
    target = load_target(file, environments_dir, all_valid=False)
    server, name = _addressed(tool, target)
    if server is not None:
        target = replace(target, config=_only(server, target.config), faults={})
    return anyio.run(_call, target, server, name, cast("dict[str, Any]", parsed), task, seed, as_json)


def _addressed(tool: str, target: Target) -> tuple[str | None, str]:
    """`SERVER/TOOL` apart, where it begins with the name of a server; those may have slashes, too.

    Raises:
        ConfigError: that server's entry is wrong, or disabled.
    """
    named = [*target.config.servers, *target.faults, *target.disabled]
    server = max((each for each in named if tool.startswith(f"{each}/")), key=len, default=None)
    if server is None:
        return None, tool
    if server in target.faults:
        raise target.faults[server]
    if server in target.disabled:
        at = f"{target.key}.{server}"
        raise ConfigError("the server is disabled", file=target.source, key=at, remedy="enable it to call its tools")
    return server, tool.removeprefix(f"{server}/")


def _only(server: str, config: GatewayConfig) -> GatewayConfig:
    """What a call to this server needs: it, and who answers for the user."""
    needed = {server, config.elicitation.server if config.elicitation else server}
    return config.model_copy(
        update={"servers": {name: config.servers[name] for name in config.servers if name in needed}}
    )


async def _call(
    target: Target,
    server: str | None,
    name: str,
    arguments: dict[str, Any],
    task: str | None,
    seed: int,
    as_json: bool,
) -> int:
    async with opened_where_possible(target.config, name="cli", source=target.source, key=target.key) as opened_now:
        gateway, problems = opened_now
        servers = [*target.config.servers, *target.faults, *target.disabled]
        tool = _find(gateway, server, name, servers, [*target.faults.values(), *problems])
        async with gateway.lease(trajectory=uuid4().hex, task=task, seed=seed, tools=[tool]) as session:
            result = await session.call(tool, arguments)
    if as_json:
        structured = dict(result.structured) if result.structured is not None else None
        record = {"text": result.text, "structured": structured, "is_error": result.is_error, "reward": result.reward}
        typer.echo(json.dumps(record | {"elapsed_s": result.elapsed_s}, ensure_ascii=False))
    else:
        typer.echo(result.text)
    return int(result.is_error)


def _find(gateway: Gateway, server: str | None, name: str, servers: list[str], problems: list[ConfigError]) -> str:
    """The exposed name of the tool that is meant. Raises ConfigError, with what is wrong with who may have it."""
    tools = policy_tools(gateway.catalogue)
    mine = [tool for tool in tools if server in (None, tool.server)]
    for tool in mine:
        if tool.exposed_name == name or (server is not None and tool.name == name):
            return tool.exposed_name
    prefix, slash, _ = name.partition("/")
    if server is None and slash:
        raise ConfigError(f"no server {prefix!r}", key=name, remedy=near(prefix, servers, "servers"))
    known = sorted(tool.exposed_name for tool in mine)
    nearest = get_close_matches(name, known, n=1)
    meant = f"did you mean {nearest[0]!r}? " if nearest else ""
    unknown = ConfigError("no such tool", key=name, remedy=f"{meant}tools: {', '.join(known) or 'none'}")
    said = problems if server is not None and problems else [unknown, *problems]
    raise one_error(said)
