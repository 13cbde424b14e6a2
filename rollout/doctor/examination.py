"""The examination of one server: schemas, latencies, isolation, and injected faults."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

import anyio

from gateway.config.models import GatewayConfig, Kind
from gateway.errors import HarnessError
from gateway.gateway import Gateway
from gateway.leases.lease_dir import names_lease_dir
from gateway.leases.session import Session
from gateway.types import Audience, Role, Scope, ToolDefinition
from rollout.doctor import fault_injection
from rollout.doctor.advice import advise, finding_under, own_scope, unproven
from rollout.doctor.fidelity import TokenCounter, examine_tools, schema_problems
from rollout.doctor.isolation import Observation, observe, probe_call, slow_tools
from rollout.doctor.plan import CallOption, Plan, new_word, plan_calls, suggested
from rollout.doctor.report import Isolation, IsolationVerdict, Latency, ServerReport
from rollout.doctor.verdict import ScopeProbe, determinism, own_verdict, scope_verdict, shared_verdict, uninformative
from rollout.environment.harness import list_tasks


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the probes may do, and for how long."""

    call_options: tuple[CallOption, ...] = ()
    allow_writes: bool = False
    counter: TokenCounter | None = None
    task: tuple[str, int] | None = None
    """Task and seed that servers with a reset are reset to; None takes the server's first task."""
    calls: int = 20
    """Number of calls whose latency is measured."""
    call_timeout_s: float = 5.0
    """For each call of a probe; a server's own bound applies where it is shorter."""
    hang_timeout_s: float = 1.0
    """For a request to a stopped server."""
    probe_timeout_s: float = 25.0
    """For all probes under one scope."""
    pause_s: float = 1.1
    """Between two readings that must agree; longer than the second after which a clock changes."""
    slow_s: float = 5.0
    """Tools whose calls take longer together are listed in the notes."""
    at_a_time: int = 4
    """Servers examined concurrently; more than one affects the latencies."""
    server_timeout_s: float = 180.0
    """For the whole examination of one server."""
    key: str = "servers"
    """The key under which the file holds its servers, for messages."""


OnProgress = Callable[[str, str], None]
"""Takes a server's name and the step that begins; the empty text where the examination has ended."""


class Examination:
    """Examines one server and fills in its report."""

    def __init__(
        self, server: str, config: GatewayConfig, options: Options, report: ServerReport, on_progress: OnProgress
    ) -> None:
        self._server, self._options, self._report, self._on_progress = server, options, report, on_progress
        self._config, self._entry = config, config.servers[server]
        self._task = options.task
        self._starts: list[float] = []
        self._word = new_word()
        self._offered: dict[str, ToolDefinition] = {}
        self._observed: list[Observation] = []

    async def run(self) -> None:
        shareable = not names_lease_dir(self._entry)
        own = own_scope(self._entry)
        shared_probe: ScopeProbe | None = None
        if shareable:
            async with self._gateway(Scope.SHARED) as gateway:
                await self._first_look(gateway)
                async with self._lease(gateway) as session:
                    shared_probe = await self._observe(gateway, session, Scope.SHARED)
        async with self._gateway(own) as gateway:
            if not shareable:
                await self._first_look(gateway)
            async with self._lease(gateway) as session:
                own_probe = await self._observe(gateway, session, own)
                # Faults are injected into this process, since another start would take most of the time.
                injected = await self._inject_faults(session)
            if injected:
                self._begin("starting again")
                async with self._lease(gateway) as session:
                    await session.connection(self._server).list_raw(timeout_s=self._options.call_timeout_s)
        self._report.start = Latency.of(self._starts)
        self._conclude(shared_probe, own_probe)

    def _begin(self, step: str) -> None:
        self._on_progress(self._server, step)

    @asynccontextmanager
    async def _gateway(self, scope: Scope) -> AsyncGenerator[Gateway]:
        bound = min(self._entry.call_timeout_s, self._options.call_timeout_s)
        entry = self._entry.model_copy(
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
                # Probes hold two leases at the same time.
                "max_sessions": max(2, self._config.max_sessions),
                "lease_timeout_s": entry.start_timeout_s + bound,
                "reset_timeout_s": bound,
                "release_timeout_s": bound,
            }
        )
        self._begin(f"starting, {scope}")
        async with Gateway(config, name="doctor") as gateway:
            yield gateway
            note = f"start: fork has no effect: {gateway.spawned.get(self._server)}"
            if self._server in gateway.spawned and note not in self._report.notes:
                self._report.notes.append(note)

    @asynccontextmanager
    async def _lease(self, gateway: Gateway) -> AsyncGenerator[Session]:
        task, seed = self._task or (None, 0)
        async with gateway.lease(trajectory=f"doctor-{uuid4().hex}", task=task, seed=seed) as session:
            started = session.connection(self._server).start_s
            if started not in self._starts:  # leases of a shared connection have the same start
                self._starts.append(started)
            yield session

    async def _first_look(self, gateway: Gateway) -> None:
        """Fill in protocol, tools and latency."""
        report, server = self._report, self._server
        self._begin("schemas and latency")
        report.malformed = gateway.malformed[server]
        if not gateway.catalogue[server]:
            report.problems.append("it offers no tools that can be used" if report.malformed else "it offers no tools")
            raise HarnessError("nothing to examine", server=server)
        await self._choose_task(gateway)
        async with self._lease(gateway) as session:
            connection = session.connection(server)
            report.protocol_version = connection.identity.protocol
            raw = await connection.list_raw(timeout_s=self._options.call_timeout_s)
            shown = {tool.name: tool for tool in session.tools.values() if tool.server == server}
            report.tools = examine_tools(
                raw,
                connection.tools,
                shown,
                counter=self._options.counter,
            )
            if self._options.counter is not None:
                report.tokens = self._options.counter.tools([tool.openai_schema() for tool in shown.values()])
            report.notes += schema_problems(connection.tools)
            await self._measure_calls(session, self._plan(session))

    async def _choose_task(self, gateway: Gateway) -> None:
        """Choose the task to reset to: the environment's, else the server's first task, else none."""
        roles = {tool.role for tool in gateway.catalogue[self._server]}
        if Role.RESET not in roles:
            self._task = None
        elif self._task is None and Role.TASKS in roles:
            async with gateway.lease(trajectory=f"doctor-{uuid4().hex}", task=None, seed=0) as session:
                listed = await list_tasks(session, self._server, "train", limit=1)
            if listed:
                self._task = (listed[0].task, listed[0].seed)
        elif self._task is None:
            self._report.notes.append("it has a reset but lists no tasks: it was not reset")

    def _plan(self, session: Session) -> Plan:
        tools = [tool for tool in session.tools.values() if tool.server == self._server]
        self._offered = {tool.exposed_name: tool for tool in tools}
        options = self._options
        return plan_calls(
            self._server,
            tools,
            options.call_options,
            word=self._word,
            allow_writes=options.allow_writes,
            as_sent=self._config.calls.as_sent,
        )

    async def _measure_calls(self, session: Session, plan: Plan) -> None:
        """Measure the first read that answers quickly, or the listing of tools where none does."""
        connection, options = session.connection(self._server), self._options
        call = None
        for candidate in plan.reads:
            began = time.perf_counter()
            answer = await probe_call(session, candidate)
            if answer.well and time.perf_counter() - began < options.call_timeout_s / options.calls:
                call = candidate
                break
        seconds: list[float] = []
        with anyio.move_on_after(options.call_timeout_s):
            for _ in range(options.calls):
                began = time.perf_counter()
                if call is not None:
                    await probe_call(session, call)
                else:
                    await connection.list_raw(timeout_s=options.call_timeout_s)
                seconds.append(time.perf_counter() - began)
        self._report.call = Latency.of(seconds)
        self._report.called = call.tool if call is not None else "tools/list"

    async def _observe(self, gateway: Gateway, a: Session, scope: Scope) -> ScopeProbe:
        """Observe the effects of lease `a` from a second lease."""
        async with self._lease(gateway) as b:
            self._begin(f"isolation, {scope}")
            plan = self._plan(a)
            self._report.withheld = plan.withheld
            observation = Observation()
            self._observed.append(observation)
            with anyio.move_on_after(self._options.probe_timeout_s):
                await observe(observation, a, b, plan, pause_s=self._options.pause_s)
                return ScopeProbe(plan, observation, scope_verdict(str(scope), plan, observation))
        evidence = f"the calls had not ended after {self._options.probe_timeout_s:g} s"
        return ScopeProbe(plan, None, Isolation(scope=str(scope), finding=IsolationVerdict.UNKNOWN, evidence=evidence))

    async def _inject_faults(self, session: Session) -> bool:
        """Stop and kill the server's process, after every other use of it; return whether it was one of ours."""
        report, connection = self._report, session.connection(self._server)
        if self._entry.kind is not Kind.STDIO:
            in_process = self._entry.kind is Kind.IN_PROCESS
            report.hung = report.killed = fault_injection.IN_PROCESS if in_process else fault_injection.NOT_OURS
            return False
        self._begin("hung and killed")
        report.hung = await fault_injection.hang(connection, timeout_s=self._options.hang_timeout_s)
        if connection.alive:
            report.killed = await fault_injection.kill(connection, timeout_s=self._options.call_timeout_s)
        return True

    def _conclude(self, shared: ScopeProbe | None, own: ScopeProbe) -> None:
        """Fill in what the probes under both scopes show together."""
        report = self._report
        found_own = own_verdict(shared, own)
        found_shared = shared_verdict(shared, own)
        report.isolation = tuple(found for found in (found_shared, found_own) if found is not None)
        report.determinism = determinism(shared, own)
        report.advice = advise(self._entry, found_shared, found_own, modern=report.era == "modern")
        if report.advice.scope is None:
            report.problems.append(f"no scope keeps its trajectories apart: {report.advice.reason}")
        elif report.scope_given and self._configured_leaks():
            problem = f"scope: {report.scope} lets trajectories see each other; {report.advice.reason}"
            report.problems.append(problem)
        stated = report.scope if report.scope_given else None
        report.unknown = unproven(stated, report.isolation, report.advice, self._entry)
        if report.unknown:
            report.to_know = self._to_know(own)
        report.notes += slow_tools(self._observed, at_least_s=self._options.slow_s)
        report.notes += [f"not called, {message}" for message in own.plan.refused]
        unfaithful = [tool for tool in report.tools if not tool.faithful]
        report.problems += [f"{tool.name} is not shown as it was sent: {tool.difference}" for tool in unfaithful]
        report.problems += [f"hung: {report.hung.said}"] if report.hung and report.hung.well is False else []
        report.problems += [f"killed: {report.killed.said}"] if report.killed and report.killed.well is False else []
        report.notes += [f"left out, malformed: {message}" for message in report.malformed]
        report.notes += [f"{tool.name}: {message}" for tool in report.tools for message in tool.hidden]
        undescribed = [tool.name for tool in report.tools if tool.audience == Audience.POLICY and not tool.described]
        if undescribed:
            report.notes.append(f"without a description, so that the policy has to guess: {', '.join(undescribed)}")

    def _configured_leaks(self) -> bool:
        found = finding_under(self._report.scope, self._report.isolation, self._entry)
        return found is not None and found.finding is IsolationVerdict.LEAKS

    def _to_know(self, own: ScopeProbe) -> tuple[str, ...]:
        """Suggest options that may let the probes find out: calls to fill in, and permission for all calls."""
        wanted = [*own.plan.withheld, *(message.split(":", 1)[0] for message in own.plan.refused)]
        if own.observation is not None:
            wanted += uninformative(own.plan, own.observation)
        tools = [self._offered[name] for name in dict.fromkeys(wanted) if name in self._offered]
        return (*suggested(self._server, tools), *(["--allow-writes"] if own.plan.withheld else []))
