"""Whether servers still define their tools as they did when the gateway published them.

A server says so itself (`tools/list_changed`) or is found out when a connection to it is opened again. From then on it
is of no use to this gateway: the trajectories that lease it fail, and no new one gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

import anyio
import structlog
from anyio.abc import TaskGroup

from gateway.catalogue.differences import changed_tools
from gateway.connection.connection import Connection
from gateway.errors import ToolsChanged, ToolsUnknown
from gateway.types import ToolDefinition

log = structlog.get_logger(__name__)

_PAUSE_S = 0.5
"""Between two listings that one connection asks for: a flood of notices costs no more than that."""


class ToolWatch:
    """What was published, and what has changed since.

    Args:
        clean: Takes the secrets of a server, its first argument, out of a text.
    """

    def __init__(self, tasks: TaskGroup, clean: Callable[[str, str], str] = lambda _, text: text) -> None:
        self._tasks, self._clean = tasks, clean
        self._published: dict[str, dict[str, ToolDefinition]] = {}
        self._changed: dict[str, ToolsChanged] = {}
        self.changed: Mapping[str, ToolsChanged] = MappingProxyType(self._changed)
        """By server, the error with the difference; a server never leaves it."""
        self._early: dict[str, Sequence[ToolDefinition]] = {}
        """Listings of servers whose tools are not published yet, because others are still starting."""
        self._noticed: set[Connection] = set()
        """Those whose announcement nobody has looked into yet."""
        self._listing: set[Connection] = set()
        self._looking: set[Connection] = set()
        self._wake = anyio.Event()
        self._looked: dict[Connection, anyio.Event] = {}

    def publish(self, server: str, tools: Sequence[ToolDefinition]) -> None:
        """These definitions, as the server sent them, are what the trajectories of this gateway begin with."""
        self._published[server] = {tool.name: tool for tool in tools}
        if (early := self._early.pop(server, None)) is not None:
            self.compare(server, early)

    def compare(self, server: str, tools: Sequence[ToolDefinition]) -> None:
        """Take note of a listing; the first one that differs is kept. One that comes before `publish` waits for it."""
        if server not in self._published:
            self._early[server] = tools
            return
        try:
            differences = changed_tools(self._published[server], {tool.name: tool for tool in tools})
        except Exception as error:  # boundary: a defect here ends the use of this server, and of nothing else
            self._lose(server, error)
            return
        if differences and server not in self._changed:
            difference = self._clean(server, "\n".join(differences))
            self._changed[server] = error = ToolsChanged(difference, server=server)
            log.warning("server.tools_changed", server=server, problem=str(error))

    def _lose(self, server: str, error: Exception) -> None:
        log.exception("server.tools_unknown", server=server)
        self._changed.setdefault(server, ToolsUnknown(f"{type(error).__name__}: {error}", server=server))

    def notice(self, connection: Connection) -> None:
        """The server says that its list has changed: `run` will look. Safe from callbacks, in any number."""
        self._noticed.add(connection)
        self._wake.set()

    async def run(self) -> None:
        """Look into what is noticed, until cancelled. A callback is in no task, so it cannot start one itself."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            for connection in self._noticed - self._looking:
                self._looking.add(connection)
                self._tasks.start_soon(self._look, connection)

    async def settle(self, connections: Collection[Connection]) -> None:
        """Wait until what these connections have announced so far was looked into; bounded as the listings are."""
        for connection in connections:
            # One listing may be under way and miss what was announced since; the next one does not.
            for _ in range(2):
                if connection in self._noticed or connection in self._listing:
                    await self._looked.setdefault(connection, anyio.Event()).wait()

    async def _look(self, connection: Connection) -> None:
        try:
            while connection in self._noticed:
                self._noticed.discard(connection)
                self._listing.add(connection)
                tools = await connection.list_again()
                if tools is not None:
                    self.compare(connection.server, tools)
                self._done(connection)
                await anyio.sleep(_PAUSE_S)
        except Exception as error:  # boundary: as above; this task shares its group with every connection
            self._lose(connection.server, error)
        finally:
            self._looking.discard(connection)
            self._noticed.discard(connection)
            self._done(connection)

    def _done(self, connection: Connection) -> None:
        self._listing.discard(connection)
        if waiting := self._looked.pop(connection, None):
            waiting.set()
