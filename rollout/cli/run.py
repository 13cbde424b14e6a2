"""`run`: evaluation. Trajectories without a trainer, resumable, with a summary."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
import yaml

from mcp_rollout.gateway.catalogue.names import policy_tools
from mcp_rollout.gateway.errors import ConfigError, Faults, raise_all
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.rollout.cli.engine_options import EngineChoice
from mcp_rollout.rollout.cli.live import ProgressEvery, shown_live, shown_steps
from mcp_rollout.rollout.cli.option_models import with_option_models
from mcp_rollout.rollout.cli.options import INTERRUPTED, AsJson, TaskSource
from mcp_rollout.rollout.cli.run_report import Played, print_report
from mcp_rollout.rollout.cli.worlds import Worlds, opened_hosts, with_hosts
from mcp_rollout.rollout.engines.engine import Engine, EngineOptions, ModelEngine
from mcp_rollout.rollout.engines.opening import opened_engine
from mcp_rollout.rollout.engines.rehearsal import IdleWorlds, idle_worlds
from mcp_rollout.rollout.engines.scripted import WithoutModel
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.overrides import overridden
from mcp_rollout.rollout.environment.rows import environment_tasks
from mcp_rollout.rollout.environment.sections import BYTES_PER_TOKEN
from mcp_rollout.rollout.environment.startup import opened_environment
from mcp_rollout.rollout.environment.task import Task
from mcp_rollout.rollout.evaluation.play import Job, jobs_of, lengths_for, play_all
from mcp_rollout.rollout.evaluation.resume import (
    Settings,
    compare_records,
    compare_settings,
    engine_settings,
    evaluation_record,
)
from mcp_rollout.rollout.evaluation.summary import Outcome, note_on_rewards
from mcp_rollout.rollout.loop.agent import build_agent
from mcp_rollout.rollout.loop.compaction import check_compaction
from mcp_rollout.rollout.loop.reward import check_reward
from mcp_rollout.rollout.loop.thinking import check_thoughts
from mcp_rollout.rollout.process import export_spans, tune_collector
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.run_record import RunRecord, TokenIds, file_digest
from mcp_rollout.rollout.trace.store import TraceStore, read_traces
from mcp_rollout.rollout.training.void import Evidence, findings

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """How much of the environments is played, and how much at a time."""

    rows: Annotated[int | None, typer.Option("-n", min=1, help="Rows of each environment; all by default.")] = None
    samples: Annotated[int, typer.Option(min=1, help="Trajectories per row.")] = 1
    concurrency: Annotated[int, typer.Option(min=1, help="Trajectories at a time.")] = 8
    response_tokens: Annotated[
        int | None, typer.Option(min=1, help="Token budget after the prompt; by default what the engine has room for.")
    ] = None


@app.command()
@with_option_models
def run(
    environments: Annotated[list[str], typer.Argument(metavar="ENV...", help="Environments: YAML files or names.")],
    engine: EngineChoice,
    out: Annotated[Path, typer.Option(help="Directory for the traces.")],
    source: TaskSource,
    sizes: Sizes,
    worlds: Worlds,
    split: Annotated[str | None, typer.Option(help="train, test or all; by default test, of --tasks all.")] = None,
    agent_with: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An argument of the environments' agent; repeatable.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep what is in --out and run what is missing.")] = False,
    success_at: Annotated[float, typer.Option(help="The least reward that counts as a success in pass@k.")] = 1.0,
    progress_every: ProgressEvery = 10.0,
    otel: Annotated[bool, typer.Option("--otel", help="Send spans as OTEL_EXPORTER_OTLP_ENDPOINT says.")] = False,
    as_json: AsJson = False,
) -> int:
    """Evaluate: roll environments out without a trainer. Exit status 1 where a trajectory failed.

    Reports pass@k (one of k samples succeeds) and pass^k (all of them do), with 95% intervals over the rows.
    """
    override = {"agent": {"with": dict(map(_argument, agent_with))}} if agent_with else {}
    loaded = with_hosts(_loaded(environments, source, override, engine.written_as), worlds.hosts)
    for environment in loaded:
        if sizes.concurrency > environment.max_sessions:
            taken = f"{environment.max_sessions} of --concurrency {sizes.concurrency}"
            typer.echo(f"note: {environment.name} takes {taken} at a time; its key max_sessions raises that", err=True)
    split = source.split(split, default="test")
    options = engine.options(max_sequences=sizes.concurrency)
    settings: Settings = {"split": split, "response-tokens": sizes.response_tokens, "max-tokens": engine.max_tokens}
    settings |= {"tasks": file_digest(source.tasks_file)} if source.tasks_file is not None else {}
    settings |= engine_settings(options)
    recorded = _recorded(out, resume=resume)
    stop_spans = export_spans(key="--otel") if otel else None
    try:
        played = anyio.run(_play, loaded, options, split, sizes, worlds, out, recorded, settings, progress_every)
    except KeyboardInterrupt:
        typer.echo(_interrupted(out), err=True)
        return INTERRUPTED
    finally:
        if stop_spans is not None:
            stop_spans()
    total = print_report(
        played, loaded, out=out, split=split, samples=sizes.samples, success_at=success_at, as_json=as_json
    )
    return int(total.failed > 0)


def _loaded(
    names: Sequence[str], source: TaskSource, override: Mapping[str, Any], tool_format: str | None
) -> list[Environment]:
    """Read and validate the environments. Raises ConfigErrors with the faults of all of them."""
    if source.tasks_file is not None and len(names) > 1:
        raise ConfigError("is for one environment", key="--tasks", remedy="run the environments one after the other")
    loaded, faults = list[Environment](), Faults()
    for name in names:
        with faults.collected():
            environment = overridden(source.load(name), override, key="--agent-with")
            loaded.append(environment)
            for check in (build_agent, check_reward):
                faults.check(check, environment)
            if tool_format is not None:
                check_thoughts(environment, tool_format)
    raise_all(faults)
    if len({environment.name for environment in loaded}) < len(loaded):
        raise ConfigError("two of the environments have one name", key="ENV", remedy="give each its own name")
    return loaded


def _argument(option: str) -> tuple[str, Any]:
    """An argument and its value, which is written as in YAML."""
    name, equals, value = option.partition("=")
    try:
        if equals and name.isidentifier():
            return name, yaml.safe_load(value)
    except yaml.YAMLError:
        pass
    remedy = "write it as in --agent-with attempts=3"
    raise ConfigError(f"no argument with a value: {option}", key="--agent-with", remedy=remedy)


def _recorded(out: Path, *, resume: bool) -> list[Outcome]:
    if out.exists() and not out.is_dir():
        raise ConfigError("is a file", file=out, key="--out", remedy="name a directory")
    recorded = list(map(Outcome.of, read_traces(out))) if out.is_dir() else []
    if recorded and not resume:
        raise ConfigError("holds traces already", file=out, key="--out", remedy="add --resume or name another")
    return recorded


def _interrupted(out: Path) -> str:
    kept = sum(outcome.is_done for outcome in map(Outcome.of, read_traces(out))) if out.is_dir() else 0
    trajectories = f"{kept} {'trajectory is' if kept == 1 else 'trajectories are'} kept in {out}"
    return f"interrupted: {trajectories}; the same command with --resume plays the rest"


async def _play(
    environments: Sequence[Environment],
    options: EngineOptions,
    split: str,
    sizes: Sizes,
    worlds: Worlds,
    out: Path,
    recorded: Sequence[Outcome],
    settings: Settings,
    progress_every: float,
) -> Played:
    """Play the rows that are not recorded yet; a failed trajectory of an earlier run is played again."""
    store = TraceStore(out, key="--out")
    compare_settings(out, settings)  # before a model is loaded
    async with AsyncExitStack() as stack:
        recorder, replay = stack.enter_context(worlds.cassettes())
        engine = await stack.enter_async_context(opened_engine(options))
        _check(engine, environments, out, recorded)
        lengths = lengths_for(engine, response_tokens=sizes.response_tokens, tokens_per_turn=options.max_tokens)
        for environment in environments:
            unit = 1 if engine.token_ids is TokenIds.MODEL else BYTES_PER_TOKEN
            check_compaction(environment, lengths.limits(environment), unit=unit)
        store.check()
        hosts = await stack.enter_async_context(opened_hosts(environments))
        gateways: dict[str, Gateway] = {}
        runs: dict[str, RunRecord] = {}
        jobs: list[Job] = []
        for environment in environments:
            name = environment.name
            opened = opened_environment(environment, record=recorder, replay=replay, hosts=hosts[name])
            gateways[name] = await stack.enter_async_context(opened)
            tasks = await _tasks(environment, gateways[name], engine, split, sizes.rows)
            jobs += jobs_of(environment, tasks, sizes.samples, engine.name, split)
            runs[name] = await anyio.to_thread.run_sync(
                evaluation_record, environment, gateways[name], options, engine, settings
            )
            kept = {each.run for each in recorded if each.is_done and each.key.environment == name}
            await anyio.to_thread.run_sync(compare_records, out, kept, runs[name])
        tune_collector()
        outcomes, todo = _remaining(jobs, recorded)
        resumed = frozenset(outcome.trace for outcome in outcomes)
        # A cassette records trajectories only, so worlds without a turn can be neither recorded nor replayed.
        are_idle_seen = todo and recorder is None and replay is None
        idle = await _idle(environments, gateways, jobs, progress_every) if are_idle_seen else {}
        rewards = {environment.name: environment.reward for environment in environments}
        evidence: dict[str, list[Evidence]] = {name: [] for name in rewards}

        def finished(trace: Trace) -> None:
            outcomes.append(Outcome.of(trace))
            evidence[trace.task.environment].append(Evidence.of(trace, rewards[trace.task.environment]))

        showing = shown_live(
            f"{', '.join(gateways)} / {engine.name}",
            store.heartbeat.progress.activity,
            total=len(jobs),
            earlier=len(outcomes),
            every_s=progress_every,
        )
        began = time.monotonic()
        async with showing:
            await play_all(
                todo,
                gateways=gateways,
                engine=engine,
                lengths=lengths,
                store=store,
                # Only now that everything has started: the settings of a run that never began must not bind the next.
                runs={name: store.describe(record) for name, record in runs.items()},
                concurrency=min(options.max_sequences, len(todo)),
                finished=finished,
                seed=options.sampling.seed,
            )
        store.close()
        notes = list(engine.notes)
        if any(outcome.is_branch for outcome in outcomes):
            notes.append("leaves of a tree share beginnings, so pass@k is not that of independent samples")
        notes += [f"{name}: {finding}" for name, seen in evidence.items() for finding in findings(seen)]
        return Played(
            engine=engine.name,
            notes=notes,
            outcomes=outcomes,
            idle=idle,
            resumed=resumed,
            seconds=time.monotonic() - began,
            counts_bytes=engine.token_ids is not TokenIds.MODEL,
        )


async def _tasks(
    environment: Environment, gateway: Gateway, engine: Engine, split: str, rows: int | None
) -> list[Task]:
    """The tasks to play. Raises ConfigError also where the model's chat template does not render them."""
    tasks = await environment_tasks(environment, gateway, split, rows)
    if note := note_on_rewards(environment, tasks):
        typer.echo(f"note: {note}", err=True)
    if isinstance(engine, ModelEngine) and tasks:
        shown = [tool.openai_schema() for tool in policy_tools(gateway.catalogue)]
        engine.check_template(tasks[0], shown, has_user=environment.has_user_messages)
    return tasks


def _remaining(jobs: Sequence[Job], recorded: Sequence[Outcome]) -> tuple[list[Outcome], list[Job]]:
    """What of the jobs an earlier run has done, and those that are left."""
    done = {outcome.key: outcome for outcome in recorded if outcome.is_done}
    wanted = {job.key for job in jobs}
    attempts = Counter(outcome.key for outcome in recorded)
    todo = [job.at_attempt(attempts[job.key]) for job in jobs if job.key not in done]
    return [outcome for key, outcome in done.items() if key in wanted], todo


async def _idle(
    environments: Sequence[Environment], gateways: Mapping[str, Gateway], jobs: Sequence[Job], every_s: float
) -> dict[str, IdleWorlds]:
    """Examine the world of each row without a turn."""
    async with shown_steps("worlds without a turn", every_s=every_s):
        return {
            environment.name: await idle_worlds(
                environment,
                gateways[environment.name],
                [job.task for job in jobs if job.row[0] == environment.name and not job.origin.sample],
            )
            for environment in environments
        }


def _check(engine: Engine, environments: Sequence[Environment], out: Path, recorded: Sequence[Outcome]) -> None:
    if isinstance(engine, WithoutModel):
        for environment in environments:
            engine.check(environment)
    if others := {outcome.key.engine for outcome in recorded} - {engine.name}:
        problem = f"holds traces of engine {', '.join(sorted(others))}"
        raise ConfigError(problem, file=out, key="--out", remedy="name another directory")
    named = {environment.name: environment for environment in environments}
    for outcome in recorded:
        environment = named.get(outcome.key.environment)
        if environment is not None and outcome.agent != environment.agent:
            problem = f"holds traces of {environment.name} by another agent, or by this one with other arguments"
            raise ConfigError(problem, file=out, key="--out", remedy="name another directory")
