"""What `--writes-to` names: paths and addresses that probes may write to where no copy can be made."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from gateway.config.models import ServerConfig
from gateway.errors import ConfigError
from rollout.doctor.entry_data import data_of, resolved

_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


def place_of(entry: ServerConfig) -> tuple[str, ...]:
    """What probes write to if the server is not on a copy: its data, or the server where it names none."""
    if entry.command is None:
        return (entry.label,)
    return tuple(str(resolved(path, entry.cwd)) for _, path, _ in data_of(entry)) or (entry.label,)


def writes_to(places: Sequence[str]) -> str:
    """The options that name these places."""
    return " ".join(f"--writes-to {shlex.quote(place)}" for place in places)


def without_user(address: str) -> str:
    """The address without its user and password."""
    scheme, separator, rest = address.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else address


def is_named(place: str, named: Sequence[str]) -> bool:
    """Whether a path or an address, or what it is part of, is among those that the user named."""
    return any(_covers(each, place) for each in named)


def paths_in(named: Sequence[str]) -> tuple[str, ...]:
    """The paths among what the user named, without links."""
    return tuple(os.path.realpath(os.path.expanduser(each)) for each in named if _is_path(each))


def addresses_in(named: Sequence[str], entries: Collection[ServerConfig]) -> tuple[str, ...]:
    """The addresses among what the user named, as `confined` takes them: each IP of a host, and sockets.

    Raises:
        ConfigError: a host is not known, and it is no server of `entries` either.
    """
    places = [place for entry in entries for place in place_of(entry)]
    found = [*paths_in(named)]
    for each in named:
        if _is_path(each):
            continue
        host, port = _host_and_port(each)
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM) if host else []
        except OSError:
            infos = []
        if not infos and not any(_covers(each, place) for place in places):
            remedy = "name a path that exists, or an address as the report has it"
            raise ConfigError(
                f"{without_user(each)!r} is neither a path nor a known address", key="--writes-to", remedy=remedy
            )
        found += [f"{info[4][0]} {port or 0}" for info in infos]
    return tuple(dict.fromkeys(found))


def _covers(named: str, place: str) -> bool:
    if named == place:
        return True
    if _is_path(named):
        whole, part = (os.path.realpath(os.path.expanduser(each)) for each in (named, place))
        return _is_path(place) and os.path.commonpath([whole, part]) == whole
    if _is_path(place) or ("://" in named and urlsplit(named).path.strip("/")):
        return False
    (host, port), (at, its_port) = _host_and_port(named), _host_and_port(place)
    return host is not None and host == at and port in (None, its_port)


def _is_path(text: str) -> bool:
    return text.startswith(("/", "~", "./", "../")) or ("://" not in text and os.path.exists(text))


def _host_and_port(text: str) -> tuple[str | None, int | None]:
    """The host and port of a URL or of `host:port`; (None, None) if it is neither."""
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        return parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None, None
