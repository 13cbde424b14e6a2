"""Serve a gateway over HTTP for the length of an `async with` block."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import uvicorn
from anyio.abc import TaskStatus

from gateway.errors import ConfigError
from gateway.serve.app import ServeApp
from gateway.serve.client_gateways import ClientGateways, ServedGateway
from gateway.serve.config import ServeConfig
from gateway.serve.leases import PATH, ServedLeases
from mcp_wire.http_connections import Connections
from mcp_wire.http_request import Site
from mcp_wire.http_server import protocol

_BACKLOG = 4096
_STOP_S = 5.0
"""For uvicorn to close its connections."""


@dataclass(eq=False)
class Serving:
    """A gateway that is served."""

    url: str
    _leases: ServedLeases

    @property
    def leases(self) -> int:
        """Leases at the moment, waiting ones included."""
        return len(self._leases)

    async def end_leases(self) -> None:
        """End every lease, and lease nothing more; return when their worlds are released."""
        await self._leases.end_all()

    async def drain(self) -> None:
        """Lease nothing more, and return when no lease is left, after `drain_s` at the latest."""
        await self._leases.drained()


class _Server(uvicorn.Server):
    """uvicorn without handlers of its own for signals: the program decides."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def http_server(app: Any, site: Site, connections: Connections, *, direct_bytes: int = 0) -> uvicorn.Server:
    """uvicorn on this project's connections, for an ASGI application and the `Site` that admits its requests.

    Args:
        direct_bytes: As in `mcp_wire.http_server.protocol`.
    """
    return _Server(
        uvicorn.Config(
            app,
            http=protocol(site, connections, direct_bytes=direct_bytes),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=int(_STOP_S),
        )
    )


@asynccontextmanager
async def serving(gateway: ServedGateway, config: ServeConfig) -> AsyncGenerator[Serving]:
    """Serve an entered gateway for the length of the block; leaving it ends every lease.

    Raises:
        ConfigError: the address cannot be listened at.
    """
    # Here: where the address is taken, uvicorn would end the program.
    listener = listen(config.host, config.port)
    port = listener.getsockname()[1]
    host = f"[{config.host}]" if ":" in config.host else config.host
    async with anyio.create_task_group() as tasks:
        leases = ServedLeases(gateway, config, tasks)
        app = ServeApp(gateway, ClientGateways(gateway, tasks), tasks, config, leases)
        connections = Connections(receive_s=config.receive_s, unadmitted=config.unadmitted)
        server = http_server(app, app, connections, direct_bytes=config.max_request_bytes)
        stopped = anyio.Event()

        async def serve() -> None:
            try:
                await server.serve(sockets=[listener])
            finally:
                stopped.set()

        tasks.start_soon(serve)
        tasks.start_soon(leases.sweep)
        tasks.start_soon(connections.sweep)
        await tasks.start(_hold_sessions, app)
        try:
            yield Serving(f"http://{host}:{port}{PATH}", leases)
        finally:
            with anyio.CancelScope(shield=True):  # worlds are released whatever ends the block; each wait is bounded
                # Before uvicorn ends: it still carries the answers of the calls that are cancelled now.
                await leases.end_all()
                await app.client_face.sessions.end_all()
                server.should_exit = True
                # uvicorn waits for requests for half of it, and then cancels them.
                with anyio.move_on_after(2 * _STOP_S):
                    await stopped.wait()
            tasks.cancel_scope.cancel()


async def _hold_sessions(app: ServeApp, *, task_status: TaskStatus[None]) -> None:
    """Keep mcp's sessions of MCP clients until cancelled."""
    async with app.client_face.sessions.run():
        task_status.started()
        await anyio.sleep_forever()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one. Raises `ConfigError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Or a restart would find the port taken by connections of the old program, for a minute.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        problem = f"cannot listen at {host} port {port}: {error.strerror or error}"
        raise ConfigError(problem, key="--port", remedy="name another one; 0 takes a free one") from error
    listener.setblocking(False)
    return listener
