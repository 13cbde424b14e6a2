"""The examination of one server: schemas, latencies and isolation."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import anyio

from mcp_rollout.gateway.config.models import GatewayConfig, LeaseDirConfig, ServerConfig, Start
from mcp_rollout.gateway.config.variables import child_env
from mcp_rollout.gateway.errors import GatewayError, HarnessError
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.janitor import names_lease_dir
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.transport.python_program import python_program
from mcp_rollout.gateway.types import Role, Scope, ToolDefinition
from mcp_rollout.rollout.doctor.advice import conclude, leaks, own_scope, shares_files
from mcp_rollout.rollout.doctor.confined import ANY
from mcp_rollout.rollout.doctor.forking import SAFE, alike_in_forks, shared_with_parent
from mcp_rollout.rollout.doctor.isolation import Player, Run, Waits, foreign_calls
from mcp_rollout.rollout.doctor.permission import granted, is_named, place_of, shown, writes_to
from mcp_rollout.rollout.doctor.plan import CallOption, Permissions, Script, new_word, plan_script
from mcp_rollout.rollout.doctor.probe_fixtures import loopback_page
from mcp_rollout.rollout.doctor.report import Latency, ServerReport, Verdict
from mcp_rollout.rollout.doctor.throwaway import (
    NO_PROGRAM,
    PREFIX,
    Throwaway,
    lease_directories,
    lease_places,
    on_copies,
    unconfined,
    why_not,
)
from mcp_rollout.rollout.doctor.tool_words import Hints, Sort
from mcp_rollout.rollout.doctor.tools import examine_tools, schema_problems
from mcp_rollout.rollout.doctor.verdict import Visit
from mcp_rollout.rollout.environment.harness import list_tasks
from mcp_rollout.rollout.environment.startup import opened_where_possible
from mcp_rollout.rollout.tokens.chat_template import ChatTemplate

_LONGEST_PAUSE_S = 1.0
"""Between two looks of a lease that is alone, to tell what changes with time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the probes may do, and for how long."""

    call_options: tuple[CallOption, ...] = ()
    writes_to: tuple[str, ...] = ()
    """Paths and addresses that probes may write to where no copy can be made."""
    allow_outside: bool = False
    """Whether probes may call tools that reach the network or other processes."""
    counter: ChatTemplate | None = None
    calls: int = 20
    """Number of calls whose latency is measured."""
    call_timeout_s: float = 10.0
    """For each call of a probe; a server's own bound applies where it is shorter."""
    probe_timeout_s: float = 120.0
    """For all probes under one scope."""
    slow_s: float = 5.0
    """Tools whose calls take longer together are listed in the notes."""
    at_a_time: int = 4
    """Servers examined concurrently; more than one affects the latencies."""
    server_timeout_s: float = 480.0
    """For the whole examination of one server."""
    key: str = "servers"
    """The key under which the file holds its servers, for messages."""


OnProgress = Callable[[str, str], None]
"""Takes a server's name and the step that begins; the empty text where the examination has ended."""


class Examination:
    """Examines one server and fills in its report.

    Args:
        reaches: Addresses that the server wants to reach. If there are any, it may reach all, and no tool is called
            that may write.
    """

    def __init__(
        self,
        server: str,
        config: GatewayConfig,
        options: Options,
        report: ServerReport,
        on_progress: OnProgress,
        reaches: tuple[str, ...] = (),
    ) -> None:
        self._server, self._options, self._report, self._reaches = server, options, report, reaches
        self._begin = partial(on_progress, server)
        self._config, self._entry = config, config.servers[server]
        self._task: tuple[str, int] | None = None
        self._starts: list[float] = []
        self._script: Script | None = None
        self._offered: dict[str, ToolDefinition] = {}
        self._waits = Waits()
        self._throwaway: Throwaway | None = None
        self._unnamed: tuple[str, ...] = ()
        """What the user would have to name before tools that may write are called."""
        self._word, self._page = new_word(), ""
        self._declared = "its entry says scope: shared" if report.scope_given and report.scope == Scope.SHARED else ""

    async def run(self) -> None:
        own = own_scope(self._entry)
        async with loopback_page() as port:
            with TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as directory:
                self._page = f"http://127.0.0.1:{port}/"
                self._permit(Path(directory), port)
                try:
                    await self._probe(own)
                finally:
                    if self._throwaway is not None:
                        self._report.refused = self._throwaway.refused()
        self._report.notes += self._waits.slow_tools(at_least_s=self._options.slow_s)

    async def _probe(self, own: Scope) -> None:
        if self._throwaway is not None and self._throwaway.launched:
            await self._download()
        shared = None if names_lease_dir(self._entry) else await self._visit(Scope.SHARED)
        apart = await self._visit(own)
        more: list[Visit] = []
        if self._throwaway is not None and shared is None:
            more.append(await self._visit(own))  # a second fresh lease, to tell what is random
        directories: list[Visit] = []
        if self._throwaway is not None and shared is not None and shares_files(shared, apart):
            directories.append(await self._visit(own, per_lease=True))
            if leaks(directories[0], [shared, apart]):  # by chance, if not again
                directories.append(await self._visit(own, per_lease=True))
        self._report.start = Latency.of(self._starts)
        conclude(
            self._report,
            self._entry,
            shared=shared,
            own=apart,
            directories=directories,
            more=more,
            throwaway=self._throwaway,
            unnamed=self._unnamed,
            offered=self._offered,
            declared=self._declared,
        )
        promised = self._entry.start is Start.FORK
        if promised or (own is Scope.PROCESS and self._report.verdict is Verdict.OWN):
            await self._observe_forks(apart, promised)

    async def _observe_forks(self, apart: Visit, promised: bool) -> None:
        """Play the script in two forks, and propose `start: fork` where nothing speaks against it."""
        program = python_program(self._entry, child_env(self._entry.env))
        if program is None and promised:
            self._report.notes.append("start: fork has no effect: its command is not a Python program")
        if program is None or self._throwaway is None or unconfined():
            return
        runs, shared, refused = [Run(), Run()], set[str](), ""
        entry, place = self._throwaway.forked(program)
        self._begin("forks")
        try:
            async with self._gateway(Scope.PROCESS, entry, self._config.lease_dir) as gateway, AsyncExitStack() as held:
                await held.enter_async_context(self._lease(gateway))  # the first process of a gateway is spawned
                with anyio.move_on_after(self._options.probe_timeout_s):
                    for run in runs:
                        session = await held.enter_async_context(self._lease(gateway))
                        if refused := gateway.spawned.get(self._server, ""):
                            break
                        shared |= set(shared_with_parent(session.connection(self._server).pid or 0))
                        await self._player(session, place).play(apart.script.calls, run)
                        await anyio.sleep(_LONGEST_PAUSE_S)  # so that what shows the time differs
        except (GatewayError, OSError) as error:
            refused = str(error)
        problems = [f"share {', '.join(sorted(shared)[:3])}"] if shared else []
        if alike := alike_in_forks((apart.second, apart.third), runs):
            problems.append(f"are answered alike by {', '.join(alike)}, and processes are not")
        if promised and refused:
            self._report.notes.append(f"start: fork has no effect: {refused}")
        elif promised:
            self._report.problems += [f"start: fork is not safe: its forks {problem}" for problem in problems]
        elif not (refused or problems) and len(runs[1].steps) == len(apart.script.calls):
            self._report.notes.append(SAFE)

    def _permit(self, directory: Path, port: int) -> None:
        """Decide where the probes play and what they may write to, and say so before the server starts."""
        entry, named = self._entry, self._options.writes_to
        reason = why_not(entry)
        places = () if reason == NO_PROGRAM else place_of(entry)
        if not reason:
            self._throwaway = Throwaway(
                root=directory,
                entry=entry,
                page_port=port,
                word=self._word,
                places=lease_places(self._config.servers.values()),
                granted=(*granted(named), *([ANY] if self._reaches else [])),
            )
            reason = self._throwaway.prepare() or f"it reaches {', '.join(self._reaches)}"
            places = tuple(map(str, self._throwaway.left))
            if unconfined():
                reason, places = "this system cannot confine a process", ("/",)
        left = [place for place in places if not is_named(place, named)]
        # Where every address is open, naming some of them is not enough.
        self._unnamed = (*left, *self._reaches)
        self._permissions = Permissions(write=not self._unnamed, outside=self._options.allow_outside)
        if self._unnamed:
            self._report.notes.append(f"nothing was written: {reason} ({writes_to(self._unnamed)})")
        self._report.touches = self._touched(places) or "nothing of yours"
        self._begin(f"probes touch {self._report.touches}")

    def _touched(self, places: tuple[str, ...]) -> str:
        """What of the user's the examination reads, reaches and writes to; empty for nothing."""
        made, named = self._throwaway, self._options.writes_to
        if made is None:
            by = "by tools annotated read-only" if self._unnamed else "by all tools"
            return ", ".join([*places, by]) if places else ""
        parts = [f"copies of {', '.join(map(str, made.copied))}"] if made.copied else []
        parts += [f"what --writes-to names: {', '.join(map(shown, named))}"] if named else []
        parts += ["any address, by tools annotated read-only"] if self._reaches else []
        return "; ".join(parts)

    async def _visit(self, scope: Scope, *, per_lease: bool = False) -> Visit:
        """Play the script in three leases of a new gateway: in one, and then in two more, which take turns."""
        entry, place, template = self._placed(per_lease=per_lease)
        async with self._gateway(scope, entry, template) as gateway, AsyncExitStack() as leases:
            if self._script is None:
                await self._first_look(gateway)
            first = await leases.enter_async_context(self._lease(gateway))
            script = self._script_for(first)
            self._begin(f"isolation, {scope}")
            visit = Visit(scope=str(scope), script=script)
            with anyio.move_on_after(self._options.probe_timeout_s):
                player, began = self._player(first, place), time.perf_counter()
                await player.play(script.calls, visit.first)
                await anyio.sleep(min(time.perf_counter() - began, _LONGEST_PAUSE_S))
                await player.play(script.rounds[-1], visit.idle)
                session = await leases.enter_async_context(self._lease(gateway))
                second = self._player(session, place)
                third = self._player(await leases.enter_async_context(self._lease(gateway)), place)
                for calls in script.rounds:
                    await second.play(calls, visit.second)
                    await third.play(calls, visit.third)
                foreign = foreign_calls(visit.first, visit.second)
                tried = await second.play(foreign.values(), Run())
                visit.foreign = {index: step.answer for index, step in zip(foreign, tried.steps, strict=True)}
                await second.play(script.closing, visit.closing)
                if script.closing:
                    await third.play(script.rounds[-1], visit.after)
                if self._report.call is None:
                    await self._measure_calls(session, second, visit.second)
            if place is not None and self._throwaway is not None:
                visit.changed = self._throwaway.changed(place)
        return visit

    def _placed(self, *, per_lease: bool) -> tuple[ServerConfig, Path | None, LeaseDirConfig]:
        """The entry for one visit, its throwaway place, and the directories of leases."""
        if self._throwaway is None:
            return self._entry, None, self._config.lease_dir
        if per_lease:
            directories = LeaseDirConfig(template=str(self._throwaway.template))
            return self._throwaway.per_lease(), None, directories
        entry, place = self._throwaway.world()
        return entry, place, self._config.lease_dir

    def _player(self, session: Session, place: Path | None) -> Player:
        copied = self._throwaway.copied.values() if self._throwaway else ()
        named = (*copied, *lease_directories(self._entry))
        return Player(session, self._word, place=place, named=named, page=self._page, waits=self._waits)

    async def _measure_calls(self, session: Session, player: Player, seen: Run) -> None:
        """Measure the first call that only looks and answered quickly, or the listing of tools where none did."""
        connection, options = session.connection(self._server), self._options
        bound = options.call_timeout_s / options.calls
        looks = (step.call for step in seen.steps if step.call.sort is Sort.READ and step.answer.well)
        call = next((each for each in looks if self._waits.mean_s(each.name) < bound), None)
        seconds: list[float] = []
        with anyio.move_on_after(options.call_timeout_s):
            for _ in range(options.calls):
                began = time.perf_counter()
                if call is not None:
                    await player.play((call,), Run())
                else:
                    await connection.list_raw(timeout_s=options.call_timeout_s)
                seconds.append(time.perf_counter() - began)
        self._report.call = Latency.of(seconds)
        self._report.called = call.name if call is not None else "tools/list"

    @asynccontextmanager
    async def _gateway(self, scope: Scope, entry: ServerConfig, directories: LeaseDirConfig) -> AsyncGenerator[Gateway]:
        bound = min(entry.call_timeout_s, self._options.call_timeout_s)
        entry = entry.model_copy(
            update={
                "scope": scope,
                "required": True,
                "call_timeout_s": bound,
                "min_ready": 0,
                "max_processes": None,
                "leases_per_process": 1,
            }
        )
        config = self._config.model_copy(
            update={
                "servers": {self._server: entry},
                "lease_dir": directories,
                # Probes hold three leases at the same time.
                "max_sessions": max(3, self._config.max_sessions),
                "lease_timeout_s": entry.start_timeout_s + bound,
                "reset_timeout_s": bound,
                "release_timeout_s": bound,
            }
        )
        self._begin(f"starting, {scope}")
        async with Gateway(config, name="doctor") as gateway:
            yield gateway

    async def _download(self) -> None:
        """Start the server with the network once, and call nothing: a launcher may have to fetch it."""
        self._begin("downloading")
        alone = self._config.model_copy(update={"servers": {self._server: self._entry}, "elicitation": None})
        with on_copies(alone) as config:
            async with opened_where_possible(config, name="doctor", source=""):
                pass

    @asynccontextmanager
    async def _lease(self, gateway: Gateway) -> AsyncGenerator[Session]:
        task, seed = self._task or (None, 0)
        async with gateway.lease(trajectory=f"doctor-{uuid4().hex}", task=task, seed=seed) as session:
            started = session.connection(self._server).start_s
            if started not in self._starts:  # leases of a shared connection have the same start
                self._starts.append(started)
            yield session

    async def _first_look(self, gateway: Gateway) -> None:
        """Fill in protocol and tools, and plan the calls."""
        report, server = self._report, self._server
        self._begin("schemas")
        report.malformed = gateway.malformed[server]
        if not gateway.catalogue[server]:
            report.problems.append("it offers no tools that can be used" if report.malformed else "it offers no tools")
            raise HarnessError("nothing to examine", server=server)
        await self._choose_task(gateway)
        if self._entry.leases_per_process > 1 and Role.RESET not in {each.role for each in gateway.catalogue[server]}:
            report.problems.append("leases_per_process needs a reset tool, and it has none")
        async with self._lease(gateway) as session:
            connection = session.connection(server)
            report.protocol_version = connection.identity.protocol
            raw = await connection.list_raw(timeout_s=self._options.call_timeout_s)
            shown = {tool.name: tool for tool in session.tools.values() if tool.server == server}
            report.tools = examine_tools(connection.tools, shown, counter=self._options.counter)
            if self._options.counter is not None:
                report.tokens = self._options.counter.count_tools([tool.openai_schema() for tool in shown.values()])
            report.notes += schema_problems(connection.tools)
            self._hints = Hints.by_tool(raw)
            most = max((each.trajectories for each in self._hints.values()), default=0)
            if most > 1:
                self._declared = f"it declares that it keeps {most:,} trajectories apart"

    async def _choose_task(self, gateway: Gateway) -> None:
        """Choose the task to reset to: the server's first one, if it lists any."""
        roles = {tool.role for tool in gateway.catalogue[self._server]}
        if Role.RESET in roles and Role.TASKS in roles:
            async with gateway.lease(trajectory=f"doctor-{uuid4().hex}", task=None, seed=0) as session:
                if listed := await list_tasks(session, self._server, "train", limit=1):
                    self._task = (listed[0].task, listed[0].seed)
        elif Role.RESET in roles:
            self._report.notes.append("it has a reset but lists no tasks: it was not reset")

    def _script_for(self, session: Session) -> Script:
        """The script, made once: every lease plays the same."""
        if self._script is None:
            tools = [tool for tool in session.tools.values() if tool.server == self._server]
            self._offered = {tool.exposed_name: tool for tool in tools}
            self._script = plan_script(
                self._server,
                tools,
                self._hints,
                self._options.call_options,
                word=self._word,
                permissions=self._permissions,
                as_sent=self._config.calls.as_sent,
            )
            self._report.withheld = dict(self._script.withheld)
        return self._script
