"""`rescore`: score stored traces under a changed reward."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.progress import Progress

from mcp_rollout.gateway.cassette.reading import Cassette
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.options import AsJson, EnvironmentName, EnvironmentsDir, TraceDirectory, Where, print_json
from mcp_rollout.rollout.cli.output import Console
from mcp_rollout.rollout.environment.config import Environment, load_environment
from mcp_rollout.rollout.environment.startup import opened_environment
from mcp_rollout.rollout.evaluation.rescore import LiveScore, Rescored, rescore
from mcp_rollout.rollout.loop.reward import check_reward
from mcp_rollout.rollout.loop.rubric import DIRECTORY
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.run_record import read_run_records
from mcp_rollout.rollout.trace.store import TraceStore, read_traces

_IDS_SHOWN = 3

app = typer.Typer(add_completion=False)


@app.command("rescore")
def command(
    directory: TraceDirectory,
    environment: EnvironmentName,
    out: Annotated[
        Path | None, typer.Option(help="Directory for the new traces; DIRECTORY-rescored by default.")
    ] = None,
    cassette: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A cassette of the traces: the servers replay its calls and score again."),
    ] = None,
    where: Where = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Trajectories at a time.")] = 8,
    as_json: AsJson = False,
    environments_dir: EnvironmentsDir = None,
) -> int:
    """Score recorded trajectories again, under a changed reward.

    The environment's `reward` and `filters` apply as they are now. The new traces have the new reward and are otherwise
    as they were; the old ones stay. Without --cassette the score of the server is the recorded one. Exit status 1 where
    a trajectory could not be scored again.
    """
    made = load_environment(environment, environments_dir)
    check_reward(made)
    resolved = directory.resolve()  # `.` has no name
    out = out or resolved.with_name(f"{resolved.name}-rescored")
    if out.resolve().is_relative_to(resolved):
        raise ConfigError("is within the directory of the traces", file=out, key="--out", remedy="name another")
    if out.exists() and any(True for _ in read_traces(out)):
        raise ConfigError("holds traces already", file=out, key="--out", remedy="name another")
    total = anyio.run(_rescore, directory, made, out, cassette, where, concurrency)
    score = "none" if made.reward.server is None else "recorded" if cassette is None else "server"
    _report(total, directory, out, score, as_json=as_json)
    return int(bool(total.not_done))


async def _rescore(
    directory: Path, environment: Environment, out: Path, cassette: Path | None, where: str | None, concurrency: int
) -> Rescored:
    store = TraceStore(out, key="--out")
    store.check()
    async with AsyncExitStack() as stack:
        live: LiveScore | None = None
        if cassette is not None:
            recorded = Cassette.read(cassette)
            live = LiveScore(recorded, environment, await stack.enter_async_context(opened_environment(environment)))
        traces = stack.enter_context(Traces(directory))
        progress = stack.enter_context(Progress(console=Console(stderr=True)))
        bar = progress.add_task(f"{environment.name} rescored", total=traces.count(where))
        total = await rescore(
            traces.traces(where=where),
            environment,
            read_run_records(directory),
            store,
            judged=live,
            judgements=directory / DIRECTORY,
            concurrency=concurrency,
            finished=lambda: progress.advance(bar),
        )
        if live is not None:
            total.calls, total.differing_calls = live.calls, live.differing
    store.close()
    return total


def _report(total: Rescored, directory: Path, out: Path, score: str, *, as_json: bool) -> None:
    done = max(total.done, 1)
    means = {"before": total.before / done, "after": total.after / done}
    if as_json:
        print_json({"directory": str(directory), "out": str(out), "score": score} | asdict(total) | means)
        return
    typer.echo(
        f"{total.done} rescored, {total.changed} with another reward; mean {means['before']:.3f} before, "
        f"{means['after']:.3f} now"
    )
    if score == "recorded" and total.done:
        typer.echo("with the server's recorded scores: a changed `score` tool shows with --cassette only")
    if total.calls:
        typer.echo(f"{total.differing_calls} of {total.calls} calls were answered otherwise than recorded")
    for reason, ids in sorted(total.not_done.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(ids[:_IDS_SHOWN]) + (", ..." if len(ids) > _IDS_SHOWN else "")
        typer.echo(f"{len(ids)} not rescored: {reason} ({shown})")
    typer.echo(f"new traces in {out}")
