"""`run`: trajectories without a trainer, resumable, with a summary."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import typer
from rich.console import Console
from rich.progress import Progress

from gateway.errors import ConfigError
from gateway.gateway import Gateway
from gateway.session import Session
from rollout.config import Environment, load_environment
from rollout.engines.scripted import RandomPolicy, ScriptedPolicy, expert_script
from rollout.limits import Limits
from rollout.rows import environment_tasks
from rollout.startup import opened
from rollout.task import Origin, Task
from rollout.tokens import IM_END, ByteTokens
from rollout.trace.record import Trace
from rollout.trace.store import RunKey, TraceStore, read_traces
from rollout.trajectory import roll_out
from rollout.types import Policy

ENGINES = ("expert", "random", "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """The command's options."""

    engine: str
    out: Path
    rows: int | None
    samples: int
    split: str
    resume: bool
    concurrency: int
    response_tokens: int


@dataclass(frozen=True, slots=True)
class Job:
    """One trajectory to play."""

    task: Task
    origin: Origin

    @property
    def key(self) -> RunKey:
        return RunKey.of(Trace.begin("", self.task, self.origin))


def run_environment(name: str, environments_dir: Path, options: RunOptions, *, as_json: bool) -> int:
    if options.engine not in ENGINES:
        raise ConfigError(f"unknown engine {options.engine!r}", key="--engine", remedy=f"one of {', '.join(ENGINES)}")
    environment = load_environment(name, environments_dir)
    if options.engine == "expert" and environment.tasks is None:
        raise ConfigError("the environment has no expert", file=environment.file, key="tasks.server")
    recorded = list(read_traces(options.out)) if options.out.is_dir() else []
    if recorded and not options.resume:
        raise ConfigError("holds traces already", file=options.out, key="--out", remedy="add --resume or name another")
    if others := {trace.origin.engine for trace in recorded} - {options.engine}:
        problem = f"holds traces of engine {', '.join(sorted(others))}"
        raise ConfigError(problem, file=options.out, key="--out", remedy="name another directory")
    TraceStore(options.out).check()
    traces = anyio.run(_run, environment, options, recorded)
    summary = summarise(environment, options, traces, resumed=len(traces) - _new(traces, recorded))
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        _print(summary)
    return int(summary["failed"] > 0)


async def _run(environment: Environment, options: RunOptions, recorded: list[Trace]) -> list[Trace]:
    """All traces of the run, recorded ones included. A failed one is played again when a run is resumed."""
    store = TraceStore(options.out)
    async with opened(environment.gateway_config(), name=environment.name, source=environment.file) as gateway:
        tasks = await environment_tasks(environment, gateway, options.split, options.rows)
        jobs = [
            Job(task, Origin(row=row, sample=sample, engine=options.engine))
            for row, task in enumerate(tasks)
            for sample in range(options.samples)
        ]
        done = {RunKey.of(trace): trace for trace in recorded if trace.failure is None}
        wanted = {job.key for job in jobs}
        traces = [trace for key, trace in done.items() if key in wanted]
        todo = [job for job in jobs if job.key not in done]
        # Progress belongs to standard error; it draws nothing where that is no terminal.
        with Progress(console=Console(stderr=True)) as progress:
            bar = progress.add_task(f"{environment.name} / {options.engine}", total=len(jobs), completed=len(traces))

            def finished(trace: Trace) -> None:
                traces.append(trace)
                progress.advance(bar)

            await _play_all(environment, gateway, options, todo, store, finished)
    store.close()
    return traces


async def _play_all(
    environment: Environment,
    gateway: Gateway,
    options: RunOptions,
    jobs: list[Job],
    store: TraceStore,
    finished: Callable[[Trace], None],
) -> None:
    tokens = ByteTokens()
    limits = Limits.of(environment.limits, response_tokens=options.response_tokens)
    todo = iter(jobs)

    async def player() -> None:
        for job in todo:

            async def policy_for(session: Session, job: Job = job) -> Policy:
                return await _policy(options.engine, environment, session, job, tokens)

            trace = await roll_out(
                Trace.begin(uuid4().hex, job.task, job.origin),
                environment=environment,
                gateway=gateway,
                policy_for=policy_for,
                tokens=tokens,
                limits=limits,
                store=store,
            )
            finished(trace)

    async with anyio.create_task_group() as players:
        for _ in range(min(options.concurrency, len(jobs))):
            players.start_soon(player)


async def _policy(engine: str, environment: Environment, session: Session, job: Job, tokens: ByteTokens) -> Policy:
    match engine:
        case "expert" if environment.tasks is not None:
            script = await expert_script(session, job.task, environment.tasks.server)
            return ScriptedPolicy(script, tokens.encode, stop=IM_END)
        case "random":
            seed = job.task.seed * 1000 + job.origin.sample
            return RandomPolicy(session, tokens.encode, stop=IM_END, seed=seed)
        case _:
            return ScriptedPolicy([], tokens.encode, stop=IM_END)


def _new(traces: list[Trace], recorded: list[Trace]) -> int:
    before = {trace.id for trace in recorded}
    return sum(trace.id not in before for trace in traces)


def summarise(environment: Environment, options: RunOptions, traces: list[Trace], *, resumed: int) -> dict[str, Any]:
    """What the run came to. Failed trajectories count in `failed` and nowhere else."""
    played = [trace for trace in traces if trace.reward is not None and trace.failure is None]
    scores = [trace.reward.score for trace in played if trace.reward]
    calls = sum(trace.tool_calls for trace in played)
    return {
        "environment": environment.name,
        "engine": options.engine,
        "split": options.split,
        "trajectories": len(traces),
        "resumed": resumed,
        "failed": len(traces) - len(played),
        "reward_mean": statistics.fmean(scores) if scores else None,
        "reward_std": statistics.pstdev(scores) if scores else None,
        "reward_parts": {
            part: statistics.fmean(trace.reward.parts[part] for trace in played if trace.reward)
            for part in environment.reward.reported
            if played
        },
        "turns_mean": statistics.fmean(len(trace.turns) for trace in played) if played else None,
        "tool_calls": calls,
        "tool_error_rate": sum(trace.tool_errors for trace in played) / calls if calls else 0.0,
        "stop_reasons": dict(Counter(str(trace.stop_reason) for trace in traces)),
        "failures": dict(Counter(f"{t.failure.kind}: {t.failure.message}" for t in traces if t.failure)),
        "out": str(options.out),
    }


def _print(summary: dict[str, Any]) -> None:
    console = Console()
    for key, value in summary.items():
        shown = f"{value:.3f}" if isinstance(value, float) else value
        console.print(f"{key:>16}  {shown}", highlight=False)
