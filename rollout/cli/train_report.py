"""What `train` shows: steps and warnings as verl writes them, and the held-out rows at the end."""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from shlex import quote
from statistics import fmean

import anyio
import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from mcp_rollout.rollout.cli.compare import compare_runs
from mcp_rollout.rollout.cli.live import line_of, shown
from mcp_rollout.rollout.cli.output import Console
from mcp_rollout.rollout.trace.heartbeat import watched
from mcp_rollout.rollout.trace.reader import Traces

POLL_S, LINE_EVERY_S = 0.5, 30.0
_BARS = "▁▂▃▄▅▆▇█"
_CURVE = 60
"""Steps of a curve that are drawn, the latest ones."""
_RECENT = 5
"""Steps whose mean time gives the time left."""
_SHARES = {"withdrawn": "failed_share", "failing calls": "tool_error_rate", "without advantage": "zero_advantage_share"}
_KEPT, _TAIL = 400, 30
"""Last lines of verl's output in which our error is looked for, and that are shown where there is none."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OURS = re.compile(r"^(?:\(.*?\)\s*)?\S+ \S+ \[(?:warning|error)\s*\]\s*(.*)")
"""A line of our log in verl's output, behind the name of Ray's process."""


@dataclass(frozen=True, slots=True)
class Step:
    """What verl logged of a step of training."""

    number: int
    metrics: Mapping[str, float]

    @property
    def reward(self) -> float:
        return self.metrics.get("mcp/score/mean", 0.0)

    def __str__(self) -> str:
        share = {name: self.metrics.get(f"mcp/{key}", 0.0) for name, key in _SHARES.items()}
        return ", ".join([f"reward {self.reward:.3f}", *(f"{name} {value:.0%}" for name, value in share.items())])


def checkpoint(directory: Path) -> int:
    """The step of verl's latest whole checkpoint, from which it resumes; 0 without one."""
    latest = directory / "latest_checkpointed_iteration.txt"
    return int(latest.read_text()) if latest.is_file() else 0


class _Appended:
    """The whole lines that are added to a file from now on."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, path.stat().st_size if path.exists() else 0

    def lines(self) -> list[str]:
        """Those that are new."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        return whole.decode(errors="replace").splitlines()


class Following:
    """The steps and warnings of a training so far, from what verl writes.

    Args:
        metrics: the file of verl's `file` logger.
        log: verl's output, of which this reads what is added.
        steps: number of the last step.
    """

    def __init__(self, metrics: Path, log: Path, steps: int) -> None:
        self.done: list[Step] = []
        self._metrics, self._log, self._steps = _Appended(metrics), _Appended(log), steps
        self._last = deque[str](maxlen=_KEPT)
        self._said = set[str]()

    def news(self) -> list[str]:
        """Read on; returns our warnings, each once."""
        records = map(json.loads, self._metrics.lines())
        self.done += [Step(each["step"], each["data"]) for each in records if "training/global_step" in each["data"]]
        lines = [_COLOUR.sub("", line) for line in self._log.lines()]
        self._last.extend(lines)
        found = dict.fromkeys(match[1] for match in map(_OURS.match, lines) if match is not None)
        new = [text for text in found if text not in self._said]
        self._said.update(new)
        return new

    def error(self) -> str:
        """Our own message at the end of verl's output, else its last lines."""
        lines = list(self._last)
        ours = [number for number, line in enumerate(lines) if line.startswith("error: ")]
        if not ours:
            return "\n".join(lines[-_TAIL:])
        # What Ray's processes write meanwhile has their name before it, and progress bars a number.
        return "\n".join(takewhile(lambda line: not line.startswith(("(", "Training Progress")), lines[ours[-1] :]))

    def __str__(self) -> str:
        if not self.done:
            return "Ray, verl and the model start, which takes a minute or two"
        last = self.done[-1]
        seconds = fmean(step.metrics.get("timing_s/step", 0.0) for step in self.done[-_RECENT:])
        left = timedelta(seconds=round(seconds * (self._steps - last.number)))
        return f"step {last.number} of {self._steps}, {seconds:.0f} s a step, {left} left: {last}"

    @property
    def curve(self) -> str:
        """The rewards of the latest steps, between the least and the largest of them."""
        rewards = [step.reward for step in self.done[-_CURVE:]]
        if not rewards:
            return ""
        low, high = min(rewards), max(rewards)
        bars = "".join(_BARS[round((each - low) / ((high - low) or 1) * (len(_BARS) - 1))] for each in rewards)
        return f"reward {low:.3f} to {high:.3f}: {bars}"


async def follow(arguments: Sequence[str], out: Path, metrics: Path, steps: int) -> int:
    """Run verl's trainer and show its steps; returns its exit status. Its whole output is in `out/train.log`."""
    from mcp_rollout.rollout.verl.launch import started

    log = out / "train.log"
    log.touch()
    following = Following(metrics, log, steps)
    is_terminal = Console(stderr=True).is_terminal

    def line() -> str:
        activity, _ = watched(out / "traces")
        return f"{following}; {line_of(activity)}" if activity.in_flight else str(following)

    def show_news() -> None:
        before = len(following.done)
        for warning in following.news():
            typer.echo(f"warning: {warning}", err=True)
        if len(following.done) > before and not is_terminal:
            typer.echo(str(following), err=True)

    with started(arguments, log) as process:
        async with shown(lambda: Group(Text(line()), Text(following.curve)), line, every_s=LINE_EVERY_S):
            while process.poll() is None:
                await anyio.sleep(POLL_S)
                show_news()
    show_news()
    if process.returncode:
        typer.echo(following.error(), err=True)
    elif following.done:
        typer.echo(following.curve, err=True)
    return process.returncode


def print_ending(out: Path, what: str, steps: int, *, response: int, held_out: bool) -> None:
    """Compare the held-out rows before and after by component, and say how to go on."""
    again = f"{quote(what)} --engine {quote(str(out / 'model'))} --response-tokens {response}"
    traces, trained = out / "traces", out / "model"
    if held_out:
        parts = {step: _parts(traces, step) for step in (0, steps)}
        table = Table("held-out rows", "before", "after")
        for name, before in parts[0].items():
            table.add_row(name, f"{before:.3f}", f"{parts[steps].get(name, 0.0):.3f}")
        Console().print_whole(table)
        compare_runs(a=traces, b=traces, where="validate", where_a="step = 0", where_b=f"step = {steps}")
    actor = out / f"global_step_{steps}" / "actor"
    for purpose, command in (
        ("look", f"mcp-rollout trace view {quote(str(traces))}"),
        ("why rows fail", f"mcp-rollout trace explain {quote(str(traces))}"),
        ("export the model", f"python -m verl.model_merger merge --backend fsdp {_options(actor, trained)}"),
        ("play with it", f"mcp-rollout run {again} --out {quote(f'{out}-after')}"),
        ("serve it", f"python -m sglang.launch_server --model-path {quote(str(trained))}"),
    ):
        typer.echo(f"{purpose}: {command}")


def _options(actor: Path, trained: Path) -> str:
    return f"--local_dir {quote(str(actor))} --target_dir {quote(str(trained))}"


def _parts(directory: Path, step: int) -> dict[str, float]:
    """Mean reward of the held-out trajectories of a step, and of its components."""
    values = defaultdict[str, list[float]](list)
    with Traces(directory) as traces:
        for entry in traces.entries(where=f"validate AND step = {step}"):
            if not entry["withdrawn"] and entry["reward"] is not None:
                for name, value in {"reward": entry["reward"], **entry["reward_parts"]}.items():
                    values[name].append(value)
    return {name: fmean(each) for name, each in values.items()}
