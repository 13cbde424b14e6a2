"""Servers that run as programs on a port of their own."""

import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType

import anyio
import anyio.lowlevel


@asynccontextmanager
async def listening_program(
    command: Callable[[int], Sequence[str]], *, env: Mapping[str, str] = MappingProxyType({}), host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    """The port of a program, once it accepts connections; it is killed at the end.

    Args:
        command: returns the command line for a port.
        env: further variables.
        host: at which it listens.
    """
    with socket.create_server((host, 0)) as free:
        port = free.getsockname()[1]
    async with await anyio.open_process(command(port), stdout=None, stderr=None, env=os.environ | env) as process:
        try:
            with anyio.fail_after(90):
                while not await _listens(host, port):
                    await anyio.lowlevel.checkpoint()
            yield port
        finally:
            process.kill()


async def _listens(host: str, port: int) -> bool:
    try:
        async with await anyio.connect_tcp(host, port):
            return True
    except OSError:
        return False
