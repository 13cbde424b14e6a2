"""`serve`: the gateway of an environment or a servers file behind streamable HTTP."""

from __future__ import annotations

import secrets
import signal
from pathlib import Path
from typing import Annotated

import anyio
import typer
from pydantic import SecretStr

from mcp_rollout.gateway.config.pydantic_errors import validate
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.serve.app import serving
from mcp_rollout.gateway.serve.config import ServeConfig, read_tokens
from mcp_rollout.mcp_wire.admission import is_loopback
from mcp_rollout.rollout.cli.options import EnvironmentsDir, File, Target, load_target
from mcp_rollout.rollout.environment.startup import opened

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    file: File,
    host: Annotated[str, typer.Option(help="Address to listen at; any but this machine's own needs a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = 0,
    token_file: Annotated[
        Path | None, typer.Option(help="Bearer tokens, one a line; each has its own leases and limits.")
    ] = None,
    client_token_file: Annotated[
        Path | None, typer.Option(help="Tokens of MCP clients, one a line: the policy's tools, and no leases.")
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Serve every user and program of this machine, without a token.")
    ] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A further name by which clients may address it.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Task of the worlds that MCP clients get; gateways name theirs.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of that task.")] = 0,
    idle_s: Annotated[float, typer.Option(help="Seconds without a request after which a lease is freed.")] = 60,
    drain_s: Annotated[float, typer.Option(help="Seconds that leases may go on after SIGTERM.")] = 30,
    receive_s: Annotated[float, typer.Option(help="Seconds that a request may take to arrive whole.")] = 30,
    environments_dir: EnvironmentsDir = None,
) -> None:
    """Serve worlds to gateways on other machines and tools to MCP clients, until SIGTERM or SIGINT.

    The first line of standard output is the address. Without --token-file and --no-token, the second one is the header
    with which requests are answered, which has a token made for this program.
    """
    if no_token and (token_file or client_token_file) is not None:
        raise ConfigError("there are tokens as well", key="--no-token", remedy="leave it or --token-file out")
    tokens = read_tokens(token_file) if token_file is not None else ()
    client_tokens = read_tokens(client_token_file) if client_token_file is not None else ()
    made = secrets.token_urlsafe(24) if not (tokens or no_token) and is_loopback(host) else None
    if made is not None:
        tokens = (SecretStr(made),)
    given = {"host": host, "port": port, "tokens": tokens, "allowed_hosts": allow_host or (), "idle_s": idle_s}
    given |= {"client_tokens": client_tokens, "task": task, "seed": seed, "drain_s": drain_s, "receive_s": receive_s}
    config = validate(ServeConfig, given, file="mcp-rollout serve")
    anyio.run(_serve, load_target(file, environments_dir), config, made)


async def _serve(target: Target, config: ServeConfig, token: str | None) -> None:
    names = ", ".join(target.config.servers)
    typer.echo(f"starting {names}: the address follows once they are ready", err=True)
    async with (
        opened(target.config, name=_name(target), source=target.source, key=target.key) as gateway,
        serving(gateway, config) as served,
    ):
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            typer.echo(served.url if token is None else f"{served.url}\nauthorization: Bearer {token}")
            async for received in signals:
                if received == signal.SIGTERM:
                    await served.drain()
                break


def _name(target: Target) -> str:
    return target.environment.name if target.environment is not None else Path(target.source).stem
