"""`Gateway`: the servers of one configuration, started together, leased to trajectories, closed together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType, TracebackType
from typing import Self
from uuid import uuid4

import anyio
import structlog

from mcp_rollout.gateway.cassette.recording import RecordedLeases, Recorder
from mcp_rollout.gateway.cassette.replaying import Missing, Replay, ReplayedLeases, cassette_leases, replay_only
from mcp_rollout.gateway.catalogue.hidden_text import HiddenText, hidden_in, plain
from mcp_rollout.gateway.catalogue.names import expose, policy_tools
from mcp_rollout.gateway.catalogue.overrides import select_tools
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.connection.answerers import check_elicitation
from mcp_rollout.gateway.connection.connection import Connection
from mcp_rollout.gateway.errors import ConfigError, GatewayError, ServerUnavailable
from mcp_rollout.gateway.leases.janitor import check_fixed
from mcp_rollout.gateway.leases.leasing import Leases
from mcp_rollout.gateway.leases.opening import Openings
from mcp_rollout.gateway.leases.remote_pool import RemotePool
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.logs import configure_logs_by_default
from mcp_rollout.gateway.remote.hosts import Hosts
from mcp_rollout.gateway.remote.names import OfferedServer
from mcp_rollout.gateway.transport.negotiated import Connect
from mcp_rollout.gateway.types import Identity, LeaseRequest, ServerIdentity, ToolDefinition, ToolResult

log = structlog.get_logger(__name__)


class Gateway:
    """`async with Gateway(config) as gateway:` in one long-lived task; `lease` from any task of the same loop.

    Args:
        config: The servers and the bounds.
        connect: Returns what to connect to for a server, instead of its command, url or factory; None for a server
            means "as configured". Called once for every connection.
        name: Part of every log line of this gateway, and its name in cassettes.
        record: Takes every lease, for a later replay.
        replay: Answers calls instead of the servers, which are not started unless what is missing is to be live.
        hosts: Gateways that serve these servers elsewhere (`mcp-rollout serve`); nothing is started here. What the
            entries say of commands, pools, tools and roles is then decided there, and `max_sessions` holds for each.
        relay_mode: As in `Openings`; see `for_clients`.

    Raises, on entry:
        ServerUnavailable: a `required` server did not start (`ConnectTimeout`: not in time).
        ConfigError: an entry names a tool that its server does not have; or the factory of a `required` server cannot
            be imported; or the cassette to replay has no such gateway, or other tools than the live servers.
    """

    def __init__(
        self,
        config: GatewayConfig,
        *,
        connect: Connect | None = None,
        name: str = "gateway",
        record: Recorder | None = None,
        replay: Replay | None = None,
        hosts: Hosts | None = None,
        relay_mode: str | None = None,
    ) -> None:
        configure_logs_by_default()
        self.config = config
        self.name = name
        self.failures: Mapping[str, GatewayError] = MappingProxyType({})
        """Servers that did not start, with the reason; none of them is `required`."""
        self.catalogue: Mapping[str, tuple[ToolDefinition, ...]] = MappingProxyType({})
        """All tools by server, including the harness's, as its first connection listed them."""
        self.instructions: Mapping[str, str] = MappingProxyType({})
        self.identities: Mapping[str, ServerIdentity] = MappingProxyType({})
        """By server, the name and version that it reported to its first connection."""
        self.malformed: Mapping[str, tuple[str, ...]] = MappingProxyType({})
        """By server, one message for each listed tool that cannot be used."""
        self.hidden_text: Mapping[str, tuple[HiddenText, ...]] = MappingProxyType({})
        """By server, invisible characters in its tools and instructions."""
        self._log = log.bind(gateway=name)
        self._hosts = hosts
        self._remote: RemotePool | None = None
        self._connect = connect
        started = config if hosts is None else config.model_copy(update={"servers": {}})
        self._openings = Openings(started, connect, relay_mode=relay_mode)
        self._leases: Leases | None = None
        self._record, self._replay = record, replay
        self._cassette: RecordedLeases | ReplayedLeases | None = None
        """What leases in place of `_leases`, where something is recorded or replayed."""
        self._policy_tools: dict[str, ToolDefinition] = {}

    async def __aenter__(self) -> Self:
        if self._replay is not None and self._replay.missing is Missing.FAIL:
            self._start_replay(self._replay)
            return self
        await self._openings.__aenter__()
        try:
            await (self._start_all() if self._hosts is None else self._start_on_hosts(self._hosts))
            self._start_cassette()
        except BaseException as error:  # cleanup, also when cancelled: the caller's block is not entered
            await self._openings.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._leases is None:  # a replay, which has opened nothing
            return
        self._leases.close()
        with anyio.CancelScope(shield=True):  # each world bounds it
            if self._remote is not None:
                await self._remote.aclose()
        await self._openings.__aexit__(exc_type, exc, traceback)

    async def _start_all(self) -> None:
        opened: dict[str, Connection] = {}
        failed: dict[str, GatewayError | ConfigError] = {}
        directory = await self._openings.directory() if self._openings.bundled else None

        async def start(server: str) -> None:
            try:
                opened[server] = await self._openings.open(server, directory)
            except (GatewayError, ConfigError) as error:
                failed[server] = error

        async with anyio.create_task_group() as starting:
            for server in self.config.servers:
                starting.start_soon(start, server)
        failures: dict[str, GatewayError] = {}
        for server, error in failed.items():
            if self.config.servers[server].required:
                raise error
            self._log.warning("server.unavailable", server=server, problem=str(error))
            if isinstance(error, ConfigError):  # a factory that cannot be imported
                unavailable = ServerUnavailable(error.problem, server=server)
                unavailable.__cause__ = error
                error = unavailable
            failures[server] = error
        # In the configuration's order, not that of starting: prompts have to be the same in every run.
        opened = {server: opened[server] for server in self.config.servers if server in opened}
        await self._publish(opened, failures)
        self._leases = Leases(self.config, self.catalogue, self._openings, opened, directory, log=self._log)

    async def _start_on_hosts(self, hosts: Hosts) -> None:
        check_fixed(self.config, has_directory=False)
        pool = self._remote = RemotePool(self.config, hosts, self._openings.http, self._openings.tasks)
        offered = (await pool.start()).servers
        found = {server: offered[server] for server in self.config.servers}
        await self._describe(found)
        self._offer({server: each.tools for server, each in found.items()})
        config = self.config.model_copy(update={"max_sessions": self.config.max_sessions * hosts.count})
        self._leases = Leases(config, self.catalogue, self._openings, {}, None, log=self._log, remote=pool)

    def _start_cassette(self) -> None:
        """Put the recording, or the replay with live servers behind it, in front of the leases."""
        assert self._leases is not None
        self._cassette = cassette_leases(
            self.name, self.config, self._leases, self.catalogue, self.instructions, self._record, self._replay
        )

    def _start_replay(self, replay: Replay) -> None:
        servers = replay_only(self.name, self.config, replay, self._record).servers
        self.instructions = MappingProxyType({server: each.instructions for server, each in servers.items()})
        self._offer({server: each.tools for server, each in servers.items()})
        self._cassette = ReplayedLeases(replay.cassette, self.config, self.name, self.catalogue, None)

    async def _publish(self, opened: Mapping[str, Connection], failed: Mapping[str, GatewayError]) -> None:
        self.failures = MappingProxyType(dict(failed))
        await self._describe(opened)
        for server, connection in opened.items():
            for problem in connection.malformed:
                self._log.warning("server.tool_malformed", server=server, problem=problem)
            if secret := connection.tools_with_secrets:
                self._log.warning("server.secret_in_tools", server=server, tools=[*map(plain, secret)])
            if hidden := self.hidden_text[server]:
                self._log.warning("server.hidden_text", server=server, findings=[str(each) for each in hidden])
        await anyio.lowlevel.checkpoint()  # with thousands of tools, all of this at once would hold the event loop
        chosen = {
            server: select_tools(server, self.config.servers[server], connection.tools)
            for server, connection in opened.items()
        }
        await anyio.lowlevel.checkpoint()
        check_elicitation(self.config, chosen)
        prefixed = [server for server, entry in self.config.servers.items() if entry.tools.prefix]
        self._offer(expose(chosen, prefixed=prefixed))
        for server, connection in opened.items():
            names = {tool.name for tool in self.catalogue[server]}
            await self._openings.watch.publish(server, [tool for tool in connection.tools if tool.name in names])

    def _offer(self, catalogue: Mapping[str, tuple[ToolDefinition, ...]]) -> None:
        self.catalogue = MappingProxyType(catalogue)
        self._policy_tools = {tool.exposed_name: tool for tool in policy_tools(catalogue)}

    async def _describe(self, found: Mapping[str, Connection | OfferedServer]) -> None:
        self.instructions = MappingProxyType({server: each.instructions for server, each in found.items()})
        self.identities = MappingProxyType({server: each.identity for server, each in found.items()})
        self.malformed = MappingProxyType({server: each.malformed for server, each in found.items()})
        hidden = {server: await hidden_in(each.tools, each.instructions) for server, each in found.items()}
        self.hidden_text = MappingProxyType(hidden)

    @property
    def connections(self) -> Collection[Connection]:
        """Those that are open here."""
        return tuple(self._openings.connections)

    @property
    def places(self) -> int:
        """How many leases of all servers there can be at a time."""
        each = [entry.max_processes for entry in self.config.servers.values() if entry.max_processes is not None]
        if self._hosts is not None:  # where its entries' processes are
            return self.config.max_sessions * self._hosts.count
        return min([self.config.max_sessions, *each])

    def for_clients(self, config: GatewayConfig, relay_mode: str) -> Gateway | None:
        """A gateway of its own for MCP clients, not entered; None if the servers are not this gateway's to start."""
        if self._hosts is not None or self._replay is not None:
            return None
        return Gateway(config, connect=self._connect, name=self.name, relay_mode=relay_mode)

    @property
    def spawned(self) -> Mapping[str, str]:
        """By server with `start: fork`, why its processes are spawned; without the servers that are forked."""
        return {server: forks.refused for server, forks in self._openings.forks.items() if forks.refused}

    async def read_resource(self, server: str, uri: str) -> ToolResult:
        """The texts of a server's resource, read in a separate lease without a reset.

        Raises:
            ConfigError: there is no such server.
            GatewayError: no lease was available in time, or the server broke.
        """
        if server not in self.catalogue:
            raise ConfigError(f"no server {server!r}", key="servers", remedy=f"there are: {', '.join(self.catalogue)}")
        name = "resources/read"
        tool = ToolDefinition(
            server=server,
            name=name,
            exposed_name=name,
            description="",
            input_schema={"type": "object"},
            read_only=True,
            reads_resource=True,
        )
        async with self._lease(LeaseRequest(trajectory=uuid4().hex, task=None, seed=0, tools={name: tool})) as session:
            return await session.call(name, {"uri": uri})

    def lease(
        self,
        *,
        trajectory: str,
        task: str | None,
        seed: int,
        tools: Collection[str] | None = None,
        later_tools: Collection[str] = (),
        identity: Identity = MappingProxyType({}),
        resets: bool = False,
    ) -> AbstractAsyncContextManager[Session]:
        """A session for one trajectory: slots, connections, every server reset; released when the block is left.

        Args:
            trajectory: A unique id, by which servers keep the state of trajectories apart.
            task: The argument of `reset`; None resets nothing, for example to list tasks.
            seed: Sent to `reset` and with every request.
            tools: Exposed names of the tools the policy may use in this trajectory; None means all.
            later_tools: Exposed names of tools that it may use once `Session.reveal` names them.
            identity: What distinguishes the trajectories of a task in a cassette, such as `sample` and `attempt`.
            resets: Without a task: whether the caller resets every server by `Session.reset`.

        Raises:
            ConfigError: `tools` or `later_tools` names an unknown tool.
            LeaseTimeout: no slot, or no connection, within `lease_timeout_s`.
            ToolsChanged: a server's tools differ from those at the gateway's start.
            GatewayError: a server could not be reached, or refused the reset.
        """
        request = LeaseRequest(
            trajectory=trajectory,
            task=task,
            seed=seed,
            tools={**self._select(tools), **self._select(later_tools)} if later_tools else self._select(tools),
            later_tools=later_tools,
            identity=identity,
            resets=resets,
        )
        return self._lease(request)

    def _lease(self, request: LeaseRequest) -> AbstractAsyncContextManager[Session]:
        leases = self._leases if self._cassette is None else self._cassette
        assert leases is not None, "the gateway was not entered"
        return leases.lease(request)

    def _select(self, names: Collection[str] | None) -> Mapping[str, ToolDefinition]:
        for name in names or ():
            if name not in self._policy_tools:
                remedy = f"available: {', '.join(self._policy_tools) or 'none'}"
                if self.failures:
                    remedy += f"; servers that did not start: {', '.join(self.failures)}"
                raise ConfigError(f"unknown tool {name!r}", key="tools", remedy=remedy)
        if names is None or len(chosen := frozenset(names)) == len(self._policy_tools):
            return self._policy_tools  # one for all sessions: a copy with a thousand tools takes 50 KB
        return {name: tool for name, tool in self._policy_tools.items() if name in chosen}
