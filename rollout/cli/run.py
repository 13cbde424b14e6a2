"""`run`: evaluation. Trajectories without a trainer, resumable, with a summary."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio
import typer
from rich.console import Console
from rich.progress import Progress

from gateway.catalogue.names import policy_tools
from gateway.errors import ConfigError
from gateway.gateway import Gateway
from rollout.cli.run_table import print_summaries
from rollout.engines.engine import Engine, EngineOptions, ModelEngine
from rollout.engines.opening import opened_engine
from rollout.engines.sampling import SamplingParameters
from rollout.engines.scripted import WITHOUT_MODEL, WithoutModel
from rollout.engines.timeouts import Timeouts
from rollout.environment.config import Environment, load_environment
from rollout.environment.rows import environment_tasks
from rollout.environment.startup import opened
from rollout.evaluation.play import Job, Lengths, is_done, jobs_of, play_all
from rollout.evaluation.settings import Settings, compare_settings, keep_settings
from rollout.evaluation.summary import Summary, summarise
from rollout.loop.thinking import check_thoughts
from rollout.trace.record import Trace
from rollout.trace.store import RunKey, TraceStore, read_traces

DEFAULT_RESPONSE_TOKENS = 65536
INTERRUPTED = 130
"""Exit status after SIGINT, as shells have it."""


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
    response_tokens: int | None
    max_tokens: int | None
    tokenizer: str | None
    tool_format: str
    temperature: float
    top_p: float
    top_k: int
    seed: int
    success_at: float
    connect_timeout: float
    generate_timeout: float
    api_key_env: str | None
    device: str | None
    dtype: str | None

    @property
    def sampling(self) -> SamplingParameters:
        return SamplingParameters(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, seed=self.seed)

    @property
    def settings(self) -> Settings:
        """What a run that is resumed must have again. `-n` and `--samples` may grow."""
        given: Settings = {"split": self.split, "response-tokens": self.response_tokens, "max-tokens": self.max_tokens}
        if self.engine in ("expert", "none"):
            return given
        given["seed"] = self.seed
        if self.engine in WITHOUT_MODEL:
            return given
        sampling: Settings = {"temperature": self.temperature, "top-p": self.top_p, "top-k": self.top_k}
        return given | sampling | {"tool-format": self.tool_format}

    def engine_options(self) -> EngineOptions:
        """Raises ConfigError: the key's variable is not set."""
        api_key = os.environ.get(self.api_key_env) if self.api_key_env else None
        if self.api_key_env and not api_key:
            problem = f"the environment variable {self.api_key_env} is not set"
            raise ConfigError(problem, key="--api-key-env", remedy="set it to the server's key")
        return EngineOptions(
            engine=self.engine,
            tokenizer=self.tokenizer,
            tool_format=self.tool_format,
            sampling=self.sampling,
            timeouts=Timeouts(connect_timeout_s=self.connect_timeout, generate_timeout_s=self.generate_timeout),
            api_key=api_key,
            device=self.device,
            dtype=self.dtype,
            max_sequences=self.concurrency,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """A run, over."""

    engine: str
    notes: Sequence[str]
    traces: Sequence[Trace]
    resumed: frozenset[str]
    """Ids of trajectories that were there before."""


def run_environments(names: Sequence[str], environments_dir: Path, options: RunOptions, *, as_json: bool) -> int:
    """Exit status 1 where a trajectory failed."""
    environments = [load_environment(name, environments_dir) for name in names]
    if len({environment.name for environment in environments}) < len(environments):
        raise ConfigError("two of the environments have one name", key="ENV", remedy="give each a name of its own")
    for environment in environments if options.engine not in WITHOUT_MODEL else ():
        check_thoughts(environment, options.tool_format)
    recorded = list(read_traces(options.out)) if options.out.is_dir() else []
    if options.out.exists() and not options.out.is_dir():
        raise ConfigError("is a file", file=options.out, key="--out", remedy="name a directory")
    if recorded and not options.resume:
        raise ConfigError("holds traces already", file=options.out, key="--out", remedy="add --resume or name another")
    try:
        played = anyio.run(_run, environments, options, recorded)
    except KeyboardInterrupt:
        typer.echo(_interrupted(options.out), err=True)
        raise typer.Exit(INTERRUPTED) from None
    report = {environment.name: _summary(environment, options, played) for environment in environments}
    total = _total(options, played)
    if as_json:
        typer.echo(json.dumps(_as_json(options, played, report, total)))
    else:
        _show(options, played, report, total)
    return int(total.failed > 0)


def _interrupted(out: Path) -> str:
    kept = sum(is_done(trace) for trace in read_traces(out)) if out.is_dir() else 0
    said = f"{kept} {'trajectory is' if kept == 1 else 'trajectories are'} kept in {out}"
    return f"interrupted: {said}; the same command with --resume plays the rest"


async def _run(environments: Sequence[Environment], options: RunOptions, recorded: list[Trace]) -> Played:
    """All traces of the run, recorded ones included. A failed one is played again when a run is resumed."""
    store = TraceStore(options.out, key="--out")
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(opened_engine(options.engine_options()))
        _check(engine, environments, options, recorded)
        store.check()
        compare_settings(options.out, options.settings)
        gateways: dict[str, Gateway] = {}
        jobs: list[Job] = []
        for environment in environments:
            opening = opened(environment, name=environment.name, source=environment.file)
            gateway = await stack.enter_async_context(opening)
            gateways[environment.name] = gateway
            tasks = await environment_tasks(environment, gateway, options.split, options.rows)
            if isinstance(engine, ModelEngine) and tasks:
                shown = [tool.openai_schema() for tool in policy_tools(gateway.catalogue)]
                engine.check_template(tasks[0], shown, has_user=environment.user is not None)
            jobs += jobs_of(environment, tasks, options.samples, engine.name)
        keep_settings(
            options.out, options.settings
        )  # not before all is known to start, or a slip would bind the next run
        done = {RunKey.of(trace): trace for trace in recorded if is_done(trace)}
        wanted = {job.key for job in jobs}
        traces = [trace for key, trace in done.items() if key in wanted]
        resumed = frozenset(trace.id for trace in traces)
        todo = [job for job in jobs if job.key not in done]
        # Progress belongs to standard error; it draws nothing where that is no terminal.
        with Progress(console=Console(stderr=True)) as progress:
            label = f"{', '.join(gateways)} / {engine.name}"
            bar = progress.add_task(label, total=len(jobs), completed=len(traces))

            def finished(trace: Trace) -> None:
                traces.append(trace)
                progress.advance(bar)

            await play_all(
                todo,
                gateways=gateways,
                engine=engine,
                lengths=Lengths(
                    response_tokens=options.response_tokens or DEFAULT_RESPONSE_TOKENS,
                    tokens_per_turn=options.max_tokens,
                    context_tokens=engine.context_tokens,
                ),
                store=store,
                concurrency=min(options.concurrency, len(todo)),
                finished=finished,
            )
        store.close()
        return Played(engine=engine.name, notes=engine.notes, traces=traces, resumed=resumed)


def _check(engine: Engine, environments: Sequence[Environment], options: RunOptions, recorded: Sequence[Trace]) -> None:
    if isinstance(engine, WithoutModel):
        for environment in environments:
            engine.check(environment)
    if others := {trace.origin.engine for trace in recorded} - {engine.name}:
        problem = f"holds traces of engine {', '.join(sorted(others))}"
        raise ConfigError(problem, file=options.out, key="--out", remedy="name another directory")


def _summary(environment: Environment, options: RunOptions, played: Played) -> Summary:
    traces = [trace for trace in played.traces if trace.task.environment == environment.name]
    return summarise(
        traces,
        resumed=sum(trace.id in played.resumed for trace in traces),
        samples=options.samples,
        success_at=options.success_at,
        parts=environment.reward.reported,
    )


def _total(options: RunOptions, played: Played) -> Summary:
    return summarise(played.traces, resumed=len(played.resumed), samples=options.samples, success_at=options.success_at)


def _as_json(options: RunOptions, played: Played, report: dict[str, Summary], total: Summary) -> dict[str, Any]:
    """The totals, and beneath `environments` the same of each."""
    return {
        "engine": played.engine,
        "split": options.split,
        "notes": list(played.notes),
        "out": str(options.out),
        **asdict(total),
        "environments": {name: asdict(summary) for name, summary in report.items()},
    }


def _show(options: RunOptions, played: Played, report: dict[str, Summary], total: Summary) -> None:
    columns = dict(report) if len(report) == 1 else {**report, "all": total}
    title = f"{played.engine}, {options.split}, {total.samples} per row; success is a reward of {total.success_at:g}"
    console = Console()
    print_summaries(title, columns, console)
    for name, summary in columns.items():
        for failure, count in summary.failures.items():
            console.print(f"{name}: {count} x {failure}", highlight=False, markup=False)
    for note in played.notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    console.print(f"traces in {options.out}", highlight=False, markup=False)
