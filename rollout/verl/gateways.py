"""Gateways that live as long as the worker process, opened at their first use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.config.models import GatewayConfig
from gateway.gateway import Gateway


class Gateways:
    """Each gateway has a task of its own that enters and leaves it; trajectories come and go around it."""

    def __init__(self) -> None:
        self._opening: dict[str, asyncio.Task[Gateway]] = {}
        self._owners: set[asyncio.Task[None]] = set()

    async def get(self, name: str, config: Callable[[], GatewayConfig]) -> Gateway:
        """The open gateway `name`; callers that ask at the same time share one start.

        Raises:
            ConfigError: from `config`.
            GatewayError: a required server did not start; the next call tries again.
        """
        if name not in self._opening:
            self._opening[name] = asyncio.create_task(self._open(name, config), name=f"open {name}")
        opening = self._opening[name]
        try:
            # Shielded: a trajectory that is cancelled while it waits must not cancel the start for the others.
            return await asyncio.shield(opening)
        except BaseException:
            if opening.done() and self._opening.get(name) is opening:
                del self._opening[name]
            raise

    async def close(self) -> None:
        """Stop all servers. A worker that is killed instead takes its servers along (parent-death signal)."""
        for owner in self._owners:
            owner.cancel()
        await asyncio.gather(*self._owners, return_exceptions=True)
        self._opening.clear()

    async def _open(self, name: str, config: Callable[[], GatewayConfig]) -> Gateway:
        gateway = Gateway(config(), name=name)
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def own() -> None:
            try:
                async with gateway:
                    entered.set_result(None)
                    await asyncio.Event().wait()
            except BaseException as error:  # handed to whoever waits for the start
                if entered.done() or not isinstance(error, Exception):
                    entered.cancel()
                    raise
                entered.set_exception(error)

        owner = asyncio.create_task(own(), name=f"gateway {name}")
        self._owners.add(owner)
        owner.add_done_callback(self._owners.discard)
        await entered
        return gateway
