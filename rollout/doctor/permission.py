"""What `--writes-to` names: paths and addresses that probes may write to where no copy can be made."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.rollout.doctor.entry_data import data_of

_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


def place_of(entry: ServerConfig) -> tuple[str, ...]:
    """What probes write to if the server is not on a copy: its data, or the server where it names none."""
    return tuple(dict.fromkeys(str(data.source) for data in data_of(entry))) or (entry.label,)


def writes_to(places: Sequence[str]) -> str:
    """The options that name these places."""
    return " ".join(f"--writes-to {shlex.quote(place)}" for place in places)


def shown(named: str) -> str:
    """A path, or an address without its user and password."""
    return named if (address := _address(named)) is None else "{}:{}".format(*address)


def is_named(place: str, named: Sequence[str]) -> bool:
    """Whether a path or an address, or what it is part of, is among those that the user named."""
    return any(_covers(each, place) for each in named)


def granted(named: Sequence[str]) -> tuple[str, ...]:
    """What the user named, as `confined` takes it: paths without links, and each IP of a host."""
    found = [os.path.realpath(os.path.expanduser(each)) for each in named if _is_path(each)]
    for address in filter(None, map(_address, named)):
        with suppress(OSError):  # a host that is not known
            infos = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
            found += [f"{ip} {port}" for *_, (ip, port, *_) in infos]
    return tuple(dict.fromkeys(found))


def _covers(named: str, place: str) -> bool:
    if named == place:
        return True
    if _is_path(named) and _is_path(place):
        whole, part = (os.path.realpath(os.path.expanduser(each)) for each in (named, place))
        return Path(part).is_relative_to(whole)
    # A url with a path is that of one server, not of all of its host.
    is_host = "://" not in named or not urlsplit(named).path.strip("/")
    return is_host and (address := _address(named)) is not None and address == _address(place)


def _is_path(text: str) -> bool:
    return text.startswith(("/", "~", "./", "../")) or ("://" not in text and os.path.exists(text))


def _address(text: str) -> tuple[str, int] | None:
    """The host and port of a URL or of `host:port`; None if it is neither."""
    with suppress(ValueError):
        parts = urlsplit(text if "://" in text else f"//{text}")
        port = parts.port or _PORTS.get(parts.scheme)
        if parts.hostname and port and not _is_path(text):
            return parts.hostname, port
    return None
