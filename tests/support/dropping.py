"""A TCP relay that breaks connections: some on the way to the server, some on the way back."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from anyio.abc import ByteStream, SocketStream


@dataclass(kw_only=True)
class Relay:
    """Which share of the chunks that go through end their connection instead, and how many did.

    Each direction draws from numbers of its own: which of its chunks are dropped depends on the seed alone, not on
    how the directions alternate.
    """

    port: int
    share: float
    seed: int
    url: str = ""
    dropped_on_the_way: int = 0
    dropped_on_the_way_back: int = 0

    def __post_init__(self) -> None:
        self._draws = {on_the_way: random.Random(f"{self.seed} {on_the_way}") for on_the_way in (True, False)}
        self._open = set[anyio.CancelScope]()

    def cut(self) -> None:
        """End all connections, and whatever is sent from now on."""
        self.share = 1.0
        for each in self._open:
            each.cancel()

    async def serve(self, client: SocketStream) -> None:
        try:
            async with client, await anyio.connect_tcp("127.0.0.1", self.port) as server:
                async with anyio.create_task_group() as both:
                    self._open.add(both.cancel_scope)
                    both.start_soon(self._pass, client, server, both.cancel_scope, True)
                    both.start_soon(self._pass, server, client, both.cancel_scope, False)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            pass

    async def _pass(self, source: ByteStream, target: ByteStream, both: anyio.CancelScope, on_the_way: bool) -> None:
        try:
            while True:
                chunk = await source.receive()
                if self._draws[on_the_way].random() < self.share:
                    if on_the_way:
                        self.dropped_on_the_way += 1
                    else:
                        self.dropped_on_the_way_back += 1
                    break
                await target.send(chunk)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        both.cancel()


@asynccontextmanager
async def dropping(port: int, *, share: float, seed: int) -> AsyncIterator[Relay]:
    """A relay to a server at `port` of this machine, as long as the block lasts."""
    relay = Relay(port=port, share=share, seed=seed)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    relay.url = f"http://127.0.0.1:{listener.extra_attributes[anyio.abc.SocketAttribute.local_port]()}"
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, relay.serve)
        yield relay
        tasks.cancel_scope.cancel()
