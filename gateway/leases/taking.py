"""Take a connection to each server that a session needs, all at once, within the lease's time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from gateway.errors import GatewayError, LeaseTimeout

if TYPE_CHECKING:
    from gateway.connection.any_connection import AnyConnection
    from gateway.leases.pool import Bundle, BundlePool, SharedConnection
    from gateway.leases.remote_pool import RemotePool


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
    pools: Mapping[str, BundlePool | RemotePool],
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
    pools: Mapping[str, BundlePool | RemotePool],
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
