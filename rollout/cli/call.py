"""`call`: send one call to one tool."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import Annotated, Any
from uuid import uuid4

import anyio
import typer

from mcp_rollout.gateway.catalogue.names import policy_tools
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.config.pydantic_errors import near
from mcp_rollout.gateway.errors import ConfigError, one_error
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.types import ToolResult
from mcp_rollout.rollout.cli.options import AsJson, EnvironmentsDir, File, Target, load_target, print_result
from mcp_rollout.rollout.doctor.call_option import addressed_server, parse_arguments
from mcp_rollout.rollout.environment.startup import opened_where_possible

app = typer.Typer(add_completion=False)


@app.command()
def call(
    file: File,
    tool: Annotated[str, typer.Argument(metavar="[SERVER/]TOOL", help="With SERVER, only that server is started.")],
    arguments: Annotated[str, typer.Argument(help="The arguments, a JSON object.")] = "{}",
    task: Annotated[
        str | None, typer.Option(help="Task to reset the started servers to; by default nothing is reset.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the reset and of the call.")] = 0,
    as_json: AsJson = False,
    environments_dir: EnvironmentsDir = None,
) -> int:
    """Call one tool: start servers, lease a session, call, release, stop. Exit status 1 where the tool refuses."""
    parsed = parse_arguments(arguments, key=tool, example='for example {"x": 1}')
    target = load_target(file, environments_dir, all_valid=False)
    server = addressed_server(tool, target.servers)
    name = tool if server is None else tool.removeprefix(f"{server}/")
    if server is not None:
        target = replace(target, config=_config_of(server, target), faults={})
    result = anyio.run(_call, target, server, name, parsed, task, seed)
    structured = dict(result.structured) if result.structured is not None else None
    record = {"text": result.text, "structured": structured, "is_error": result.is_error, "reward": result.reward}
    print_result(record | {"elapsed_s": result.elapsed_s}, result.text, as_json=as_json)
    return int(result.is_error)


def _config_of(server: str, target: Target) -> GatewayConfig:
    """The configuration with the servers that a call to this one needs: itself, and the one that answers elicitations.

    Raises:
        ConfigError: the server's entry is invalid or disabled.
    """
    if server in target.faults:
        raise target.faults[server]
    if server in target.disabled:
        at = f"{target.key}.{server}"
        raise ConfigError("the server is disabled", file=target.source, key=at, remedy="enable it to call its tools")
    config = target.config
    needed = {server, config.elicitation.server if config.elicitation else server}
    return config.model_copy(
        update={"servers": {name: config.servers[name] for name in config.servers if name in needed}}
    )


async def _call(
    target: Target, server: str | None, name: str, arguments: dict[str, Any], task: str | None, seed: int
) -> ToolResult:
    async with opened_where_possible(target.config, name="cli", source=target.source, key=target.key) as started:
        gateway, problems = started
        tool = _find(gateway, server, name, target.servers, [*target.faults.values(), *problems])
        async with gateway.lease(trajectory=uuid4().hex, task=task, seed=seed, tools=[tool]) as session:
            return await session.call(tool, arguments)


def _find(gateway: Gateway, server: str | None, name: str, servers: list[str], problems: list[ConfigError]) -> str:
    """Return the exposed name of the tool. Raises ConfigError with the problems of the servers that may have it."""
    tools = [tool for tool in policy_tools(gateway.catalogue) if server in (None, tool.server)]
    for tool in tools:
        if tool.exposed_name == name or (server is not None and tool.name == name):
            return tool.exposed_name
    prefix, slash, _ = name.partition("/")
    if server is None and slash:
        raise ConfigError(f"no server {prefix!r}", key=name, remedy=near(prefix, servers, "servers"))
    known = sorted(tool.exposed_name for tool in tools)
    nearest = get_close_matches(name, known, n=1)
    suggestion = f"did you mean {nearest[0]!r}? " if nearest else ""
    unknown = ConfigError("no such tool", key=name, remedy=f"{suggestion}tools: {', '.join(known) or 'none'}")
    raise one_error(problems if server is not None and problems else [unknown, *problems])
