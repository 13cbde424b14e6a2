"""The `mcp-rollout` program: its commands, and its exit status."""

from __future__ import annotations

import atexit
import logging
import signal
import sys
import traceback
from collections.abc import Generator, MutableMapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

COMMANDS = {
    "tools": "List the tools that servers offer, as the policy and the harness see them.",
    "tool-config": "Write the servers' policy tools as verl's tool_config, which locks what the model sees.",
    "call": "Call one tool: start servers, lease a session, call, release, stop.",
    "doctor": "Find out whether servers can be trained against, and under which scope.",
    "check-env": "Examine whether an environment keeps the harness contract.",
    "configs": "Copy the included training configuration and environments, to edit them.",
    "init": "Examine servers and write an environment with them, three tasks and a reward.",
    "new-server": "Write a new environment: a working server, its YAML, rows, a test and a README.",
    "data": "Write an environment's tasks as rows for verl.",
    "serve": "Serve worlds to gateways on other machines and tools to MCP clients, until SIGTERM or SIGINT.",
    "run": "Evaluate: roll environments out without a trainer.",
    "train": "Train a model on an environment's tasks with verl's GRPO.",
    "compare": "Compare two runs over the rows that both played.",
    "rescore": "Score recorded trajectories again, under a changed reward.",
    "trace": "Read recorded trajectories.",
}
"""What `mcp-rollout --help` lists. Each command is the `app` of the module with its name in this package."""


class LazyCommands(TyperGroup):
    """Imports the module of a command when the command is invoked, so that `--help` needs no heavy import."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        if name is None:
            return name, listed, rest
        with _held_signals():
            module = import_module(f"mcp_rollout.rollout.cli.{name.replace('-', '_')}")
        return name, typer.main.get_command(module.app), rest


@contextmanager
def _held_signals() -> Generator[None]:
    """Let SIGINT and SIGTERM wait for the end of the block, and then interrupt the command.

    Compiled code that imports run, pydantic's for one, takes a handler's `KeyboardInterrupt` for an error of its own.
    """
    arrived: list[int] = []
    held = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.signal(number, lambda number, _: arrived.append(number)) for number in held}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])


def exit_with(status: int, **_: object) -> None:
    """End the program with the exit status that the command returned; the program's own options are given, too."""
    raise typer.Exit(status)


app = typer.Typer(
    cls=LazyCommands,
    result_callback=exit_with,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train tool-using models against MCP servers: look at servers, make rows, roll out, read traces.",
)


def print_version(asked: bool) -> None:
    """Print the version and end."""
    if asked:
        typer.echo(version("mcp-rollout"))
        raise typer.Exit


@app.callback()
def quiet_logs(
    context: typer.Context,
    shows_version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Log warnings only, on standard error, without the events that the command reports itself."""
    import structlog

    from mcp_rollout.gateway.logs import configure_logs

    reported = {"server.unavailable", "server.hidden_text" if context.invoked_subcommand == "tools" else ""}
    if context.invoked_subcommand in ("doctor", "init"):
        reported.add("forks.refused")

    def drop_reported(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if event["event"] in reported:
            raise structlog.DropEvent
        return event

    # Where there is no handler yet: the SDK would install one of rich in this process, if a server runs in it.
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    configure_logs(
        drop_reported,
        # Past `protect_terminal`, since the log has colours of its own.
        stream=getattr(sys.stderr, "rich_proxied_file", sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )


def _listed() -> None:
    """The body of a listed command, which is never run."""


for _name, _summary in COMMANDS.items():
    app.command(_name, help=_summary)(_listed)


def main(program: typer.Typer = app) -> None:
    """Run a program; an error that the user can correct becomes a message on standard error and exit status 2."""
    from mcp_rollout.rollout.cli.output import protect_terminal

    signal.signal(signal.SIGTERM, _interrupt)
    for number in (signal.SIGINT, signal.SIGTERM):
        # The command is over: the interpreter sets default handlers as it ends, and its status would be a signal's.
        atexit.register(signal.signal, number, signal.SIG_IGN)
    with protect_terminal():
        _run(program)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """End the command in order at SIGTERM, as at SIGINT: it closes its servers and reports what it kept."""
    handler = signal.getsignal(signal.SIGINT)  # asyncio's, while a loop runs; none in a shell's background jobs
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)


def _run(program: typer.Typer) -> None:
    try:
        program()
    except KeyboardInterrupt:  # where typer does not take it, before a command is found
        sys.exit(130)
    except Exception as error:  # boundary of the program: other errors keep their traceback
        from mcp_rollout.gateway.errors import ConfigError, GatewayError, innermost, printed

        cause = innermost(error)
        if not isinstance(cause, ConfigError | GatewayError):
            traceback.print_exc()  # here, since it may have texts of servers
            sys.exit(1)
        typer.echo(printed(cause), err=True, nl=False)
        sys.exit(2)
