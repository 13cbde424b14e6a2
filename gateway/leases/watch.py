"""Watch whether servers still define their tools as they did when the gateway published them.

A change is announced by the server (`tools/list_changed`) or found when a connection to it is opened again. From then
on the gateway does not use the server: the trajectories that lease it fail, and no new one gets it. What is announced
where one lease plays alone fails that lease; the next connection shows what the server offers to others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

import anyio
import anyio.lowlevel
import structlog
from anyio.abc import TaskGroup

from mcp_rollout.gateway.catalogue.tool_config import difference, is_changed
from mcp_rollout.gateway.connection.connection import AnyConnection, Connection
from mcp_rollout.gateway.errors import OwnToolsChanged, ToolsChanged, ToolsUnknown
from mcp_rollout.gateway.types import Scope, ToolDefinition

log = structlog.get_logger(__name__)

_PAUSE_S = 0.5
"""Between two looks at the tools of one connection, however many changes it announces."""
_TOOLS_AT_ONCE = 200
_MOST_DESCRIBED = 10
"""Changed tools of a server whose difference is described."""


class ToolWatch:
    """What was published, and what has changed since.

    Args:
        redact: Replaces the secrets of a server, its first argument, in a text.
    """

    def __init__(self, tasks: TaskGroup, redact: Callable[[str, str], str] = lambda _, text: text) -> None:
        self._tasks, self._redact = tasks, redact
        self._published: dict[str, dict[str, ToolDefinition]] = {}
        self._changed: dict[str, ToolsChanged] = {}
        self.changed: Mapping[str, ToolsChanged] = MappingProxyType(self._changed)
        """By server, the error with the difference; a server never leaves it."""
        self._early: dict[str, Sequence[ToolDefinition]] = {}
        """Listings of servers whose tools are not published yet, because others are still starting."""
        self._noticed: set[Connection] = set()
        """Connections whose announcement is not looked into yet."""
        self._listing: set[Connection] = set()
        self._looking: set[Connection] = set()
        self._wake = anyio.Event()
        self._looked: dict[AnyConnection, anyio.Event] = {}

    async def publish(self, server: str, tools: Sequence[ToolDefinition]) -> None:
        """These definitions, as the server sent them, are what the trajectories of this gateway begin with."""
        self._published[server] = {tool.name: tool for tool in tools}
        if (early := self._early.pop(server, None)) is not None:
            await self.compare(server, early)

    async def compare(self, server: str, tools: Sequence[ToolDefinition], announced: Connection | None = None) -> None:
        """Compare a listing; the first difference is kept. A listing that arrives before `publish` waits for it.

        Args:
            announced: The connection that announced a change. Where there is a difference, it lists once more: in pages
                between which the server changed, a tool that it still has may be missing.
        """
        if server in self._changed:
            return
        if server not in self._published:
            self._early[server] = tools
            return
        try:
            differences = await _differences(self._published[server], tools)
            if differences and announced is not None and (now := await announced.list_again()) is not None:
                differences = await _differences(self._published[server], now)
        except Exception as error:  # boundary: a defect here ends the use of this server, and of nothing else
            self._lose(server, error)
            return
        if differences and server not in self._changed:
            difference = self._redact(server, "\n".join(differences))
            error = ToolsChanged(difference, server=server)
            if announced is None or announced.config.scope is Scope.SHARED:
                self._changed[server] = error
            else:  # in the world of one lease
                announced.changed = error = OwnToolsChanged(difference, server=server)
            log.warning("server.tools_changed", server=server, problem=str(error))

    def _lose(self, server: str, error: Exception) -> None:
        log.exception("server.tools_unknown", server=server)
        self._changed.setdefault(server, ToolsUnknown(f"{type(error).__name__}: {error}", server=server))

    def notice(self, connection: Connection) -> None:
        """Note that a server announced a change: `run` looks into it. Safe from callbacks, any number of times."""
        self._noticed.add(connection)
        self._wake.set()

    async def run(self) -> None:
        """Look into announcements until cancelled. A callback runs in no task, so it cannot start one itself."""
        while True:
            await self._wake.wait()
            # Replaced before `_noticed` is read: an announcement that comes later wakes the next round.
            self._wake = anyio.Event()
            for connection in self._noticed - self._looking:
                self._looking.add(connection)
                self._tasks.start_soon(self._look, connection)

    async def wait(self, connections: Collection[AnyConnection]) -> None:
        """Wait until all that these connections have announced so far was looked into; bounded by the listings."""
        for connection in connections:
            # A listing under way may miss what was announced since it began; the next one does not.
            for _ in range(2):
                if connection in self._noticed or connection in self._listing:
                    await self._looked.setdefault(connection, anyio.Event()).wait()

    async def _look(self, connection: Connection) -> None:
        try:
            while connection in self._noticed:
                # Before the listing, so that a change announced during it causes another one. And in the same step as
                # the next line: `wait` relies on finding the connection in one of the two sets.
                self._noticed.discard(connection)
                self._listing.add(connection)
                tools = await connection.list_again()
                if tools is not None:
                    await self.compare(connection.server, tools, connection)
                self._done(connection)
                await anyio.sleep(_PAUSE_S)
        except Exception as error:  # boundary: as above; this task shares its group with every connection
            self._lose(connection.server, error)
        finally:
            # Also after a failure: `wait` must not wait for a listing that will not come.
            self._looking.discard(connection)
            self._noticed.discard(connection)
            self._done(connection)

    def _done(self, connection: Connection) -> None:
        self._listing.discard(connection)
        if waiting := self._looked.pop(connection, None):
            waiting.set()


async def _differences(published: Mapping[str, ToolDefinition], listed: Sequence[ToolDefinition]) -> list[str]:
    """One difference for each published tool that has changed or is gone; keys are the server's own names.

    Added tools make no difference: the policy does not see them. Of many changed tools the first ones are described.
    """
    now = {tool.name: tool for tool in listed}
    found: list[str] = []
    more = 0
    for number, (name, before) in enumerate(published.items()):
        if number % _TOOLS_AT_ONCE == _TOOLS_AT_ONCE - 1:
            await anyio.lowlevel.checkpoint()  # with thousands of tools, all at once would hold the event loop
        after = now.get(name)
        if after is not None and not is_changed(before, after):
            continue
        if len(found) == _MOST_DESCRIBED:
            more += 1
        elif after is None:
            found.append(f"{before.server}/{name} is not listed any more")
        else:
            found.append(difference(before, after, was="at the start", now="now"))
            await anyio.lowlevel.checkpoint()
    return [*found, f"and {more} more tools"] if more else found
