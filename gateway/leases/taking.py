"""What a session takes of each server: the connection that all share, or a bundle of a pool; all at once, in time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import anyio
import structlog

from mcp_rollout.gateway.connection.connection import AnyConnection
from mcp_rollout.gateway.errors import CodedError, GatewayError, LeaseTimeout

log = structlog.get_logger(__name__)

Open = Callable[[], Awaitable[AnyConnection]]
"""Opens a connection and returns it once calls can be sent; raises what `Connection.started` raises."""


FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
_MOST_DOUBLINGS = 16
"""Beyond it the pause does not grow; a server may be down for days."""


class Backoff:
    """Exponential backoff between failed starts of one server."""

    def __init__(self) -> None:
        self._failures = 0
        self.not_before = 0.0
        """When the next attempt may begin, on the event loop's clock."""

    @property
    def pausing(self) -> bool:
        return anyio.current_time() < self.not_before

    def failed(self) -> None:
        """Count a failed attempt. Of several that fail during one pause, the first counts."""
        if not self.pausing:
            pause = min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S)
            self._failures = min(self._failures + 1, _MOST_DOUBLINGS)
            self.not_before = anyio.current_time() + pause

    def succeeded(self) -> None:
        self._failures, self.not_before = 0, 0.0


class SharedAttempt:
    """What many need done and one does: those that come meanwhile wait for it, and its failure is that of all."""

    def __init__(self) -> None:
        self._lock, self._ended = anyio.Lock(), 0
        self._failure: CodedError | None = None

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[None]:
        """A block for one caller at a time, which looks first whether it was done while it waited.

        Raises:
            CodedError: what ended the block of another caller, for whom this one waited.
        """
        seen = self._ended
        async with self._lock:
            if self._ended > seen and self._failure is not None:
                raise copy(self._failure) from self._failure
            self._failure = None
            try:
                yield
            except CodedError as error:
                self._failure = error
                raise
            finally:
                self._ended += 1


class SharedConnection:
    """One connection for all sessions, opened again when it is needed and has died."""

    def __init__(self, open_connection: Open, first: AnyConnection) -> None:
        self._open, self._current = open_connection, first
        self._opening, self._backoff = SharedAttempt(), Backoff()

    @property
    def ready(self) -> AnyConnection | None:
        """The connection, where it is up."""
        return self._current if self._current.alive else None

    async def take(self) -> AnyConnection:
        """The connection, opened again where it is down. Raises what `Connection.started` raises."""
        if self._current.alive:
            return self._current
        async with self._opening.alone():
            if self._current.alive:
                return self._current
            await anyio.sleep_until(self._backoff.not_before)
            return await self._reconnect()

    async def _reconnect(self) -> AnyConnection:
        try:
            self._current = await self._open()
        except GatewayError:
            self._backoff.failed()
            raise
        self._backoff.succeeded()
        log.info("pool.reconnected", server=self._current.server)
        return self._current


@dataclass(eq=False)
class Bundle:
    """Connections that one session has exclusively, with the directory they share if they name one."""

    connections: dict[str, AnyConnection] = field(default_factory=dict[str, AnyConnection])
    """Includes those that are still starting."""
    directory: Path | None = None
    leases: int = 0
    """How often it was given out."""

    @property
    def alive(self) -> bool:
        return all(connection.alive and connection.changed is None for connection in self.connections.values())


class Pool(Protocol):
    """Gives each session a bundle of its own: a `BundlePool` of this gateway, or a `RemotePool` of hosts."""

    @property
    def name(self) -> str: ...

    @property
    def most(self) -> int | None:
        """Bundles at a time; None if the pool sets no bound."""
        ...

    async def take(self, *, reset: bool, trajectory: str = "", seed: int = 0) -> Bundle:
        """A bundle for one session; waits until there is one.

        Args:
            reset: Whether its servers will be reset, so that one that was used before will do.
            trajectory: Whose session it is, and its `seed`: for pools that hand them on.

        Raises:
            GatewayError: a server of it could not be started, or its host could not lease it.
        """
        ...

    def take_ready(self, *, reset: bool) -> Bundle | None:
        """A bundle that is open, at once; None if there is none."""
        ...

    def give_back(self, bundle: Bundle, *, healthy: bool) -> None:
        """Take a bundle back when its session is over; return at once.

        Args:
            healthy: Whether no call to the bundle failed or is still running.
        """
        ...

    def close(self) -> None:
        """The gateway is closing: start nothing more."""
        ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """The world that a session asks for."""

    trajectory: str
    seed: int
    reset: bool
    """Whether its servers will be reset."""
    deadline: float
    """On the event loop's clock."""
    timeout_s: float
    """The whole time of the lease, for messages."""


async def take_all(
    needed: Collection[str],
    shared: Mapping[str, SharedConnection],
    pools: Mapping[str, Pool],
    bundles: dict[str, Bundle],
    wanted: Wanted,
) -> dict[str, AnyConnection]:
    """A connection to each server of `needed`. What is taken from `pools` is in `bundles` even if this raises.

    Raises:
        LeaseTimeout: not all of them within the lease's time.
        GatewayError: one could not be had.
    """
    ready = {server: shared[server].ready for server in needed if server in shared}
    taken: dict[str, AnyConnection] = {server: open_now for server, open_now in ready.items() if open_now is not None}
    for name, pool in pools.items():
        if (bundle := pool.take_ready(reset=wanted.reset)) is not None:
            bundles[name] = bundle
    if len(taken) < len(ready) or len(bundles) < len(pools):  # else nothing to wait for, and no task is needed
        await _take_missing([each for each in ready if each not in taken], shared, taken, pools, bundles, wanted)
    for bundle in bundles.values():
        taken |= {server: bundle.connections[server] for server in needed if server in bundle.connections}
    if missing := [server for server in needed if server not in taken]:
        raise LeaseTimeout(f"no connection to {', '.join(missing)} within {wanted.timeout_s:g} s")
    return taken


async def _take_missing(
    servers: Collection[str],
    shared: Mapping[str, SharedConnection],
    taken: dict[str, AnyConnection],
    pools: Mapping[str, Pool],
    bundles: dict[str, Bundle],
    wanted: Wanted,
) -> None:
    """Adds to `taken` and `bundles` what can be had within the lease's time. Raises the first `GatewayError`."""
    errors: list[GatewayError] = []

    # Errors are collected and raised after the group: raised inside, the first one would cancel the other starts
    # halfway and arrive as an ExceptionGroup.
    async def take(server: str) -> None:
        try:
            taken[server] = await shared[server].take()
        except GatewayError as error:
            errors.append(error)

    async def take_bundle(name: str) -> None:
        try:
            bundles[name] = await pools[name].take(reset=wanted.reset, trajectory=wanted.trajectory, seed=wanted.seed)
        except GatewayError as error:
            errors.append(error)

    with anyio.CancelScope(deadline=wanted.deadline):
        async with anyio.create_task_group() as tasks:
            for server in servers:
                tasks.start_soon(take, server)
            for name in [name for name in pools if name not in bundles]:
                tasks.start_soon(take_bundle, name)
    if errors:
        raise errors[0]
