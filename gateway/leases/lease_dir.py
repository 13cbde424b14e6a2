"""`${lease.dir}` in server entries: find the servers that name it, validate them, and expand it for one lease."""

from __future__ import annotations

from pathlib import Path

from gateway.config.models import GatewayConfig, ServerConfig
from gateway.errors import ConfigError
from gateway.types import Scope

LEASE_DIR = "${lease.dir}"


def names_lease_dir(config: ServerConfig) -> bool:
    """Whether the entry names the lease's directory in `args`, `env` or `cwd`."""
    return any(LEASE_DIR in text for text in (config.cwd or "", *config.args, *config.env.values()))


def bundled(config: GatewayConfig) -> tuple[str, ...]:
    """The servers that share a directory for each lease and are therefore leased together.

    Raises:
        ConfigError: one of them cannot have a separate directory for every lease.
    """
    for server, entry in config.servers.items():
        at = f"servers.{server}"
        elsewhere = (entry.command or "", entry.url or "", *entry.headers.values())
        if any(LEASE_DIR in text for text in elsewhere):
            raise ConfigError(f"{LEASE_DIR} is not expanded here", key=at, remedy="use it in args, env or cwd")
        if not names_lease_dir(entry):
            continue
        if entry.command is None:
            raise ConfigError(f"{LEASE_DIR} needs a command", key=at, remedy="only stdio servers get a directory")
        if entry.scope is Scope.SHARED:
            raise ConfigError(
                f"{LEASE_DIR} is a separate directory for each lease, and under scope shared one process serves all",
                key=f"{at}.scope",
                remedy="set scope: process",
            )
        if entry.leases_per_process > 1:
            raise ConfigError(
                f"{LEASE_DIR} changes with each lease, and a reused process would keep the first one",
                key=f"{at}.leases_per_process",
                remedy="leave it at 1",
            )
    return tuple(server for server, entry in config.servers.items() if names_lease_dir(entry))


def placed(config: ServerConfig, directory: Path | None, **env: str) -> ServerConfig:
    """The entry for one connection: `${lease.dir}` expanded, and `env` added to its variables."""
    if config.command is None:
        return config
    path = str(directory)
    return config.model_copy(
        update={
            "args": tuple(text.replace(LEASE_DIR, path) for text in config.args),
            "env": {name: text.replace(LEASE_DIR, path) for name, text in config.env.items()} | env,
            "cwd": config.cwd.replace(LEASE_DIR, path) if config.cwd is not None else None,
        }
    )
