"""Arguments, options and output forms that several commands share."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mcp_rollout.gateway.config.mapping_file import JSON_SUFFIXES, read_mapping
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.config.servers_file import read_servers
from mcp_rollout.gateway.errors import ConfigError, raise_all
from mcp_rollout.rollout.cli.output import Console, json_visible
from mcp_rollout.rollout.environment.config import Environment, environment_file, load_environment
from mcp_rollout.rollout.environment.task import ALL
from mcp_rollout.rollout.tokens.chat_template import ChatTemplate, read_chat_template

File = Annotated[str, typer.Argument(help="An mcpServers file, or an environment: its YAML file or its name.")]
EnvironmentName = Annotated[str, typer.Argument(metavar="ENV", help="The environment: its YAML file or its name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
EnvironmentsDir = Annotated[
    Path | None,
    typer.Option(
        help="Where environment names are looked up; by default configs/environments, then the included ones.",
        show_default=False,
    ),
]
ChatTemplateFile = Annotated[
    Path | None,
    typer.Option("--chat-template", metavar="FILE", help="A chat template that replaces the model's own."),
]
TraceDirectory = Annotated[Path, typer.Argument(help="The directory of the traces.")]
Where = Annotated[
    str | None,
    typer.Option(metavar="EXPRESSION", help='SQL over the columns of `trace ls`: "reward < 0.5 and turns > 3".'),
]
INTERRUPTED = 130
"""Exit status after SIGINT, as in shells."""
_UNWRAPPED = 1000
"""Columns; no table is that wide."""


def output_console() -> Console:
    """A console for tables: as wide as the terminal, and without wrapping in a file or a pipe."""
    console = Console()
    # Elsewhere rich takes 80 columns, and cuts what does not fit.
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_UNWRAPPED)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSource:
    """Where the environments of a command and their tasks are."""

    tasks_file: Annotated[
        Path | None,
        typer.Option("--tasks", metavar="FILE", help="Tasks from a .jsonl or .parquet file, one on each row."),
    ] = None
    environments_dir: EnvironmentsDir = None

    def load(self, name: str) -> Environment:
        """The environment, with the tasks of --tasks if it is given. Raises ConfigError as `load_environment`."""
        environment = load_environment(name, self.environments_dir)
        return environment if self.tasks_file is None else environment.with_tasks(self.tasks_file)

    def split(self, given: str | None, *, default: str) -> str:
        """The split that is given, or the default one; of --tasks all."""
        return given or (default if self.tasks_file is None else ALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Counting:
    """What counts the tokens of tools."""

    tokenizer: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Report what the tools cost in a prompt of this model.")
    ] = None
    chat_template: ChatTemplateFile = None

    def template(self) -> ChatTemplate | None:
        """The model's chat template; None where no tokenizer is given. Raises ConfigError: it cannot be read."""
        if self.tokenizer is None and self.chat_template is not None:
            remedy = "give --tokenizer"
            raise ConfigError("nothing is counted without a tokenizer", key="--chat-template", remedy=remedy)
        text = read_chat_template(self.chat_template, key="--chat-template")
        return None if self.tokenizer is None else ChatTemplate(self.tokenizer, chat_template=text)


def none_found(directory: Path, where: str | None) -> str:
    """What a command says that found no trajectory."""
    return f"{directory}: no traces here" if where is None else f"{directory}: none of these"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What a FILE argument names: servers, with the environment around them if there is one."""

    config: GatewayConfig
    environment: Environment | None
    source: str
    """The file, as messages and lock entries name it."""
    key: str = "servers"
    """The key under which the file holds its servers."""
    faults: Mapping[str, ConfigError] = field(default_factory=dict[str, ConfigError])
    """Errors of the entries that `config` leaves out, by server."""
    disabled: tuple[str, ...] = ()

    @property
    def servers(self) -> list[str]:
        """All servers of the file, whatever their state."""
        return [*self.config.servers, *self.faults, *self.disabled]


def load_target(file: str, environments_dir: Path | None, *, all_valid: bool = True) -> Target:
    """Read what `file` names.

    Args:
        all_valid: False reports invalid entries of a servers file in `Target.faults` instead of raising them.

    Raises:
        ConfigError: the file or environment does not exist or is invalid.
    """
    path = Path(file)
    if path.suffix in (".yaml", ".yml", *JSON_SUFFIXES) and path.is_file():
        keys = read_mapping(path)
        if path.suffix in JSON_SUFFIXES or "mcpServers" in keys:
            found = read_servers(path)
            if all_valid:
                raise_all(list(found.entries.faults.values()))
            return Target(
                config=found.config,
                environment=None,
                source=file,
                key=found.entries.key,
                faults=found.entries.faults,
                disabled=found.entries.disabled,
            )
    elif path.is_file():
        raise ConfigError("is neither .json nor .yaml", file=path, remedy="give an mcpServers file or an environment")
    elif path.is_dir():
        try:
            environment_file(file, environments_dir)  # a directory may have an environment's name
        except ConfigError as error:
            raise ConfigError("is a directory", file=path, remedy="name a file in it, or an environment") from error
    environment = load_environment(file, environments_dir)
    return Target(config=environment, environment=environment, source=environment.source)


def print_json(record: Any) -> None:
    """Print a record on one line of standard output."""
    typer.echo(json_visible(json.dumps(record, ensure_ascii=False)))


def print_result(record: dict[str, Any], text: str, *, as_json: bool) -> None:
    """Print the record for programs, or the text for people."""
    if as_json:
        print_json(record)
    else:
        typer.echo(text)


def plain_table() -> Table:
    """A table without lines, and without columns yet."""
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
