"""Read cassettes: the servers' tools, the leases by what identifies them, and the calls that only read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from mcp_rollout.gateway.cassette.lines import (
    VERSION,
    Header,
    RecordedCall,
    RecordedGateway,
    RecordedLease,
    is_query,
    parse,
    unnamed,
)
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.types import Identity, Role, canonical_json

SUFFIX = ".cassette.jsonl"


def lease_key(gateway: str, task: str | None, seed: int, identity: Identity) -> str:
    """What a lease is found by."""
    return canonical_json({"gateway": gateway, "task": task, "seed": seed, "identity": dict(identity)})


def call_key(server: str, tool: str, arguments: Mapping[str, Any], trajectory: str | None = None) -> bytes:
    """What a call is compared by, with a placeholder for the trajectory's id."""
    text = canonical_json([server, tool, dict(arguments)])
    text = text if trajectory is None else unnamed(text, trajectory)
    return hashlib.sha256(text.encode(errors="replace")).digest()


@dataclass(frozen=True, slots=True)
class CassetteCall:
    """A recorded call and its place. Its line is parsed again when it is needed, which keeps little in memory."""

    text: str
    file: str
    number: int
    server: str
    role: Role | None
    key: bytes
    """Equal for equal calls: a digest of server, tool and arguments."""

    @property
    def where(self) -> str:
        return f"{self.file}:{self.number}"

    @property
    def is_query(self) -> bool:
        return is_query(self.role)

    def filled(self, trajectory: str | None = None) -> RecordedCall:
        """The call, with the trajectory's id where the recorded one had its own; None leaves the placeholder."""
        read = parse(self.text, file=self.file, number=self.number, trajectory=trajectory)
        assert isinstance(read, RecordedCall)
        return read


@dataclass(frozen=True, slots=True)
class CassetteLease:
    """A recorded lease with its calls, in the order in which they began."""

    where: str
    lease: RecordedLease
    calls: list[CassetteCall] = field(default_factory=list[CassetteCall])

    @property
    def key(self) -> str:
        return lease_key(self.lease.gateway, self.lease.task, self.lease.seed, self.lease.identity)

    @property
    def digest(self) -> str:
        """Of its calls, without their results. A recording that replaces this one has it."""
        return hashlib.sha256(b"".join(call.key for call in self.calls)).hexdigest()[:16]


class Cassette:
    """A cassette in memory; its size is about that of its files.

    Attributes:
        gateways: by name.
        leases: those of one key in the order of the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.gateways: dict[str, RecordedGateway] = {}
        self.leases: dict[str, list[CassetteLease]] = {}
        self._queries: dict[tuple[str, bytes], CassetteCall] = {}

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a file, or all `*.cassette.jsonl` of a directory.

        Raises:
            ConfigError: there is none, or a line is not one of a cassette of this version.
        """
        cassette = cls(path)
        files = sorted(cassette.path.glob(f"*{SUFFIX}")) if cassette.path.is_dir() else [cassette.path]
        if not files:
            raise ConfigError(f"has no *{SUFFIX}", file=path, remedy="name a cassette, or a directory with some")
        for file in files:
            cassette._read(file)
        for found in cassette.leases.values():
            _replace(found)
        return cassette

    def query(self, gateway: str, key: bytes) -> CassetteCall | None:
        """A recorded call that only reads, by its `call_key`."""
        return self._queries.get((gateway, key))

    def _read(self, file: Path) -> None:
        lease: CassetteLease | None = None
        for number, text in _lines(file):
            line = parse(text, file=str(file), number=number)
            where = f"{file}:{number}"
            match line:
                case Header():
                    if line.version != VERSION:
                        problem = f"is of version {line.version}, this program reads version {VERSION}"
                        raise ConfigError(problem, file=where, key="version", remedy="record again")
                case RecordedGateway():
                    if self.gateways.setdefault(line.gateway, line) != line:
                        problem = f"{line.gateway} has other tools here than before"
                        raise ConfigError(problem, file=where, remedy="replay one recording at a time, or record again")
                case RecordedLease():
                    lease = CassetteLease(where, line)
                    self.leases.setdefault(lease.key, []).append(lease)
                case RecordedCall():
                    if lease is None:
                        raise ConfigError("is a call before any lease", file=where, remedy="put it after its lease")
                    key = call_key(line.server, line.tool, line.arguments)
                    call = CassetteCall(text, str(file), number, line.server, line.role, key)
                    lease.calls.append(call)
                    # Found by its content: what only reads may be asked in another order, or in another lease.
                    if call.is_query or lease.lease.task is None:
                        self._queries.setdefault((lease.lease.gateway, call.key), call)


def _replace(found: list[CassetteLease]) -> None:
    """Put recordings that replace older ones of the same key in their places, whichever comes first in the files."""
    replaced = {id(each): each.lease.replaces for each in found}
    while pair := next(
        (
            (new, old)
            for new in found
            if replaced[id(new)]
            for old in found
            if new is not old and replaced[id(new)] == old.digest
        ),
        None,
    ):
        new, old = pair
        replaced[id(new)] = replaced[id(old)]  # a recording that was replaced twice
        found.remove(new)
        found[found.index(old)] = new


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, each with its number from 1."""
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            for number, text in enumerate(opened, 1):
                if text.strip():
                    yield number, text
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise ConfigError(problem, file=file, remedy="name a cassette, see docs/replay.md") from error
