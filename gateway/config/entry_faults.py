"""What contradicts itself in a server's entry: keys that do not fit `command`, `url` or `factory`, or the scope."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.errors import InvalidValue
from gateway.types import Scope

if TYPE_CHECKING:
    from gateway.config.models import ServerConfig

TRANSPORTS = {
    **dict.fromkeys(("stdio", "local"), "command"),
    **dict.fromkeys(("http", "streamable-http", "streamableHttp", "streamable_http", "remote", "sse"), "url"),
    "in_process": "factory",
}
"""Values of `type` or `transport`, and the key that each requires."""
_NEEDS = {"args": "command", "env": "command", "cwd": "command", "headers": "url", "client_credentials": "url"}
_OF_PROCESSES = ("min_ready", "max_processes", "leases_per_process", "start")


def connectable(value: str, key: str) -> str:
    """Return the URL. Raises ValueError, without quoting it since it may be secret, if it cannot be connected to."""
    try:
        found = urlsplit(value)
        if found.scheme in ("http", "https") and found.hostname and found.port != 0 and " " not in value:
            return value
    except ValueError:  # an invalid port, an incomplete IPv6 address
        pass
    raise ValueError(f"{key} must begin with http:// or https:// and name a host")


def faults_of_kind(entry: ServerConfig, given: str) -> Iterator[InvalidValue]:
    """What does not fit `given`, the one of `command`, `url` and `factory` that the entry has."""
    if entry.url is not None:
        try:
            connectable(entry.url, "url")
        except ValueError as error:
            yield InvalidValue(str(error), "correct the value")
    if entry.command is not None and not entry.command.strip():
        yield InvalidValue("command is empty", "name the program")
    if entry.transport is not None and (needed := TRANSPORTS[entry.transport]) != given:
        yield InvalidValue(f"type {entry.transport} needs a {needed}, and the entry has a {given}", "remove type")
    for key, needed in _NEEDS.items():
        if getattr(entry, key) and needed != given:
            yield InvalidValue(f"{key} needs a {needed}, and the entry has a {given}", f"remove {key}")
    if entry.start == "fork" and entry.command is None:
        yield InvalidValue("start: fork needs a command", "remove start")
    if (entry.max_memory_mb or entry.max_cpu_s) and entry.command is None:
        problem = "max_memory_mb and max_cpu_s need a command; other servers have no process here"
        yield InvalidValue(problem, "remove them")


def faults_of_scope(entry: ServerConfig) -> Iterator[InvalidValue]:
    """What does not fit the entry's `scope`."""
    for key in _OF_PROCESSES:
        if key in entry.model_fields_set and entry.scope is not Scope.PROCESS:
            yield InvalidValue(f"{key} needs scope: process", f"remove {key}, or set the scope")
    if entry.max_processes is not None and entry.min_ready > entry.max_processes:
        yield InvalidValue("min_ready is more than max_processes", "lower it")
    if entry.scope is Scope.PROCESS and entry.url is not None:
        problem = "scope: process needs a command or a factory; the gateway starts no process for a url"
        yield InvalidValue(problem, "use scope: session")
