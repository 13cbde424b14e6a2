"""What a FILE argument names: a servers file, or an environment."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from gateway.config.mapping_file import JSON_SUFFIXES
from gateway.config.models import GatewayConfig, read_mapping
from gateway.config.servers_file import read_servers
from gateway.errors import ConfigError, raise_all
from rollout.environment.config import Environment, load_environment


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Servers, with the environment around them if there is one."""

    config: GatewayConfig
    environment: Environment | None
    source: str
    """The file, as messages and lock entries name it."""
    key: str = "servers"
    """Under what the file has its servers."""
    faults: Mapping[str, ConfigError] = field(default_factory=dict[str, ConfigError])
    """By server, what is wrong with the entries that `config` is without."""
    disabled: tuple[str, ...] = ()


def load_target(file: str, environments_dir: Path, *, all_valid: bool = True) -> Target:
    """Read what `file` names.

    Args:
        all_valid: False leaves entries of a servers file that are wrong to the caller, in `Target.faults`.

    Raises:
        ConfigError: no such file or environment, or it is wrong.
    """
    path = Path(file)
    if path.suffix in (".yaml", ".yml", *JSON_SUFFIXES):
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
    elif path.is_dir() and not (environments_dir / f"{file}.yaml").is_file():
        raise ConfigError("is a directory", file=path, remedy="name a file in it, or an environment")
    environment = load_environment(file, environments_dir)
    source = file if path.suffix else str(environments_dir / f"{file}.yaml")
    return Target(config=environment, environment=environment, source=source)


def quiet_logs(command: str | None) -> None:
    """Warnings only, on standard error: standard output belongs to the command's result.

    What the command itself reports is left out, so that it is said once.
    """
    said = {"server.unavailable"} | ({"server.hidden_text"} if command == "tools" else set[str]())

    def leave_out(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if event["event"] in said:
            raise structlog.DropEvent
        return event

    structlog.configure(
        processors=[leave_out, *structlog.get_config()["processors"]],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
