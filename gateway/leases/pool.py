"""A pool of bundles: decide in plain functions which one a session gets, then open, warm or close it.

Under the scopes `session` and `process` a session gets a bundle that no other one uses at the same time, and that none
used before unless its servers are reset in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

import anyio
import structlog
from anyio.abc import TaskGroup

from mcp_rollout.gateway.errors import GatewayError
from mcp_rollout.gateway.leases.taking import Backoff, Bundle

log = structlog.get_logger(__name__)

_REFILL_PAUSE_S = 0.01
"""Between taking a bundle and starting the next one, which else would take the CPU from the reset of the one taken."""


class BundlePool:
    """A separate bundle for every session, from a stock of warm ones where there is any.

    Args:
        servers: Whose connections make a bundle.
        open_bundle: Opens what belongs into an empty one, entering everything as soon as it is begun; raises what
            `Connection.started` raises.
        discard: Closes one and returns when nothing of it is left.
        first: The one that is open already.
        rehearse: Prepares an open bundle, while no session has it, for its first lease; raises where it broke.
        min_ready: Bundles kept warm.
        most: Bundles at a time, opening and closing ones included; None means any number.
        leases_each: How often a bundle is given out before it is closed.
    """

    def __init__(
        self,
        servers: tuple[str, ...],
        *,
        open_bundle: Callable[[Bundle], Awaitable[None]],
        discard: Callable[[Bundle], Awaitable[None]],
        first: Bundle,
        tasks: TaskGroup,
        rehearse: Callable[[Bundle], Awaitable[None]] | None = None,
        min_ready: int = 0,
        most: int | None = None,
        leases_each: int = 1,
    ) -> None:
        self.servers, self.most = servers, most
        self._open, self._discard, self._tasks = open_bundle, discard, tasks
        self._rehearse = rehearse
        self._min_ready, self._leases_each = min_ready, leases_each
        self._ready = deque([first])
        self._used: deque[Bundle] = deque()
        self._live, self._warming = 1, 0
        self._backoff, self._refilling_later = Backoff(), False
        self._change = anyio.Event()
        self._closing = False
        self.refill()

    @property
    def name(self) -> str:
        return " and ".join(self.servers)

    async def take(self, *, reset: bool, trajectory: str = "", seed: int = 0) -> Bundle:
        """As `Pool.take`."""
        while True:
            if (bundle := self.take_ready(reset=reset)) is not None:
                return bundle
            if self.most is None or self._live < self.most:
                # Counted before the `await`: a session that looks meanwhile must not open one more than `most`.
                self._live += 1
                return self._given(await self._opened())
            # Only where this session does not reset: it cannot take a used bundle, so one of them makes room.
            if self._used:
                self._retire(self._used.popleft())
            # No `await` lies between `take_ready` and this line, so no change is missed in between.
            await self._change.wait()

    def take_ready(self, *, reset: bool) -> Bundle | None:
        """As `Pool.take_ready`."""
        bundle = self._pick(reset)
        return None if bundle is None else self._given(bundle)

    def _given(self, bundle: Bundle) -> Bundle:
        bundle.leases += 1
        if self._min_ready:
            self._tasks.start_soon(self._refill_after_pause)
        return bundle

    def give_back(self, bundle: Bundle, *, healthy: bool) -> None:
        """As `Pool.give_back`."""
        if healthy and bundle.alive and bundle.leases < self._leases_each and not self._closing:
            self._used.append(bundle)
            self._changed()
        else:
            self._retire(bundle)
        self.refill()

    def close(self) -> None:
        """As `Pool.close`."""
        self._closing = True

    def _pick(self, reset: bool) -> Bundle | None:
        for stock in (self._used, self._ready) if reset else (self._ready,):
            while stock:
                bundle = stock.popleft()
                if bundle.alive:
                    return bundle
                self._retire(bundle)
        return None

    async def _opened(self, *, idle: bool = False) -> Bundle:
        """Open a bundle, and rehearse it if it is `idle`. `_live` counts it already, and until all of it is gone."""
        bundle = Bundle()
        try:
            await self._open(bundle)
            # Here, before a session can take it: the rehearsal's release must not come after the session's reset.
            if idle and self._rehearse is not None:
                await self._rehearse(bundle)
        except BaseException as error:  # cleanup, also when cancelled: a part of the bundle may be open
            if isinstance(error, GatewayError):
                self._backoff.failed()
            # Not awaited: the session that wanted this bundle need not wait until it is gone.
            self._retire(bundle)
            raise
        self._backoff.succeeded()
        return bundle

    def _retire(self, bundle: Bundle) -> None:
        for connection in bundle.connections.values():
            connection.end("its session is over")
        # While the gateway closes, `Openings` itself waits for all connections.
        if not self._closing:
            self._tasks.start_soon(self._clear, bundle)

    async def _clear(self, bundle: Bundle) -> None:
        # `_live` falls after this, not before: `most` bounds the processes that exist, closing ones included.
        await self._discard(bundle)
        self._live -= 1
        self._changed()
        self.refill()

    def _changed(self) -> None:
        # Set and replaced in one step: wakes all that wait now, and the next to wait waits for the next change.
        self._change.set()
        self._change = anyio.Event()

    def refill(self) -> None:
        """Start missing warm bundles in the background; after a failed start, only once the backoff is over.

        Sessions do not wait for the backoff: one that finds the stock empty opens its own bundle.
        """
        missing = 0 if self._closing else self._min_ready - len(self._ready) - len(self._used) - self._warming
        if self.most is not None:
            missing = min(missing, self.most - self._live)
        if missing > 0 and self._backoff.pausing:
            if not self._refilling_later:
                self._refilling_later = True
                self._tasks.start_soon(self._refill_later)
            return
        for _ in range(missing):
            self._warming += 1
            self._live += 1
            self._tasks.start_soon(self._warm)

    async def _refill_after_pause(self) -> None:
        # A task, not a timer: a callback of an event loop that anyio did not start cannot start a task of anyio's.
        await anyio.sleep(_REFILL_PAUSE_S)
        self.refill()

    async def _refill_later(self) -> None:
        # Nothing is counted as live meanwhile, so that a session can take the slot.
        await anyio.sleep_until(self._backoff.not_before)
        self._refilling_later = False
        self.refill()

    async def _warm(self) -> None:
        try:
            self._ready.append(await self._opened(idle=True))
        except GatewayError as error:
            # The session that finds the stock empty tries for itself and gets the error.
            if not self._closing:
                log.warning("pool.warming_failed", server=error.server, problem=str(error))
        except Exception:  # boundary: this task shares its group with every connection, and warming is an optimisation
            self._backoff.failed()
            log.exception("pool.warming_failed", server=self.name)
        finally:
            self._warming -= 1
            self._changed()
