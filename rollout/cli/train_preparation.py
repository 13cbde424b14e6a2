"""What `train` does before verl starts, and where it goes on: rows, lock and sizes, and whether they still hold."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

import anyio
import typer
from pydantic import BaseModel

from mcp_rollout.gateway.catalogue.names import policy_tools
from mcp_rollout.gateway.catalogue.tool_config import compare_locks, lock_entries, parse_entries, read_lock, write_lock
from mcp_rollout.gateway.errors import ConfigError, LockMismatch
from mcp_rollout.rollout.cli.options import TaskSource
from mcp_rollout.rollout.cli.train_report import checkpoint
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.parquet import write_parquet
from mcp_rollout.rollout.environment.row_validation import AGENT
from mcp_rollout.rollout.environment.rows import environment_tasks
from mcp_rollout.rollout.environment.startup import opened_environment
from mcp_rollout.rollout.environment.task import Task
from mcp_rollout.rollout.evaluation.summary import note_on_rewards
from mcp_rollout.rollout.tokens.chat_template import ChatTemplate
from mcp_rollout.rollout.tokens.template_check import formats_shown
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.stats import STEP, statistics_of

PROBE_ROWS, PROBE_SAMPLES = 4, 2
LEAST_ROWS = 2
LONGEST, LONGEST_REHEARSED = 8192, 512
"""Tokens after a prompt that the probe allows for, with a GPU and without one."""
_HELD_OUT, _HELD_OUT_REHEARSED = 128, 16
"""Rows that are played before and after, at most."""


class Prepared(BaseModel):
    """What was written and measured before the training, kept beside it for `--resume`."""

    rows: int
    """Of a step."""
    samples: int
    """Of a row."""
    prompt: int
    """Tokens of the longest prompt, rounded up."""
    response: int
    """Tokens after the prompt."""
    tool_format: str
    held_out: bool
    """Whether there are rows that are not trained on."""
    keys: dict[str, str]
    """What verl was given for the command's options, which a further run repeats; the number of steps may differ."""
    changes: list[str]
    """KEY=VALUE of the command, which hold in a further run too, below its own."""


def prepare(
    environment: Environment,
    template: ChatTemplate,
    tool_format: str | None,
    positions: int,
    has_gpu: bool,
    keys: Mapping[str, object],
    changes: list[str],
    made: Path,
) -> Prepared:
    """Write rows and lock, and find out how long prompts are and how calls are written."""
    splits, schemas = anyio.run(_write_rows, environment, _HELD_OUT if has_gpu else _HELD_OUT_REHEARSED, made)
    if len(splits["train"]) < LEAST_ROWS:
        problem = f"has {len(splits['train'])} rows to train on, and {len(splits['test'])} that are held out"
        remedy = f"write at least {LEAST_ROWS} tasks, or lower tasks.test_share of the environment"
        raise ConfigError(problem, file=_tasks_file(environment), key="tasks", remedy=remedy)
    tasks = [task for split in splits.values() for task in split]
    if not has_own_reward(changes) and (note := note_on_rewards(environment, tasks)):
        raise ConfigError(note)
    longest = max(template.count_prompt(task.prompt, task.shown(schemas)) for task in tasks)
    if tool_format is None:
        shown = formats_shown(lambda messages: template.render(messages, schemas, continues=False), schemas)
        tool_format = shown[0] if shown else "hermes"
        typer.echo(f"calls are read as {tool_format}", err=True)
    room = positions - longest
    if room < STEP:
        problem = f"the longest prompt has {longest} tokens, and the model reads {positions}"
        raise ConfigError(problem, key="--model", remedy="show fewer tools, or take another model")
    return Prepared(
        rows=min(32 if has_gpu else 4, len(splits["train"])),
        samples=8 if has_gpu else 4,
        prompt=STEP * ceil(longest / STEP),
        response=min(LONGEST if has_gpu else LONGEST_REHEARSED, room // STEP * STEP),
        tool_format=tool_format,
        held_out=bool(splits["test"]),
        keys=_options(keys),
        changes=changes,
    )


def _tasks_file(environment: Environment) -> Path | str:
    file = None if environment.tasks is None else environment.tasks.file
    return file or environment.file


def has_own_reward(changes: Iterable[str]) -> bool:
    """Whether verl's own function or model may give a reward."""
    return any(change.lstrip("+").startswith("reward.") for change in changes)


def _options(keys: Mapping[str, object]) -> dict[str, str]:
    """Those of the command's keys in which a further run is to be the same."""
    return {key: str(value) for key, value in keys.items() if not key.startswith("trainer.")}


async def _write_rows(
    environment: Environment, held_out: int, made: Path
) -> tuple[dict[str, list[Task]], list[dict[str, Any]]]:
    """Write the rows of both splits, and the lock; returns the tasks by split, and the tools' schemas."""
    async with opened_environment(environment) as gateway:
        splits = {"train": await environment_tasks(environment, gateway, "train", None), "test": list[Task]()}
        try:
            splits["test"] = (await environment_tasks(environment, gateway, "test", None))[:held_out]
        except ConfigError as error:
            typer.echo(f"note: no rows are held out: {error}", err=True)
        for split, tasks in splits.items():
            if tasks:
                write_parquet(made / f"{split}.parquet", tasks, split=split, agent=AGENT)
        entries = lock_entries(gateway.catalogue, environment=environment.name, source=environment.source)
        write_lock(made / "tools.yaml", entries)
        return splits, [tool.openai_schema() for tool in policy_tools(gateway.catalogue)]


def probe(
    what: str, source: TaskSource, model: Path, chat_template: Path | None, prepared: Prepared, made: Path
) -> None:
    """Play a few rows as the training will, and shorten responses to what they need; writes `prepared.json`.

    In a process of its own, which leaves no model in the memory of this one.
    """
    if any(change.startswith("data.max_response_length=") for change in prepared.changes):
        (made / "prepared.json").write_text(prepared.model_dump_json())
        return
    arguments = [sys.executable, "-m", "mcp_rollout", "run", what, "--engine", str(model), "--split", "train"]
    arguments += ["-n", str(min(PROBE_ROWS, prepared.rows)), "--samples", str(PROBE_SAMPLES)]
    arguments += ["--response-tokens", str(prepared.response), "--tool-format", prepared.tool_format]
    arguments += ["--out", str(made / "probe")]
    for option, given in (
        ("--tasks", source.tasks_file),
        ("--environments-dir", source.environments_dir),
        ("--chat-template", chat_template),
    ):
        arguments += [] if given is None else [option, str(given)]
    typer.echo(f"a probe: {PROBE_SAMPLES} trajectories of each of {min(PROBE_ROWS, prepared.rows)} rows", err=True)
    subprocess.run(arguments, stdout=subprocess.DEVNULL, check=False)  # its progress and its errors are shown
    problem = "no trajectory of the probe was played to its end"
    nothing = ConfigError(problem, file=what, remedy="mend what `mcp-rollout run` reports there")
    if not (made / "probe").is_dir():
        raise nothing
    with Traces(made / "probe") as traces:
        found = statistics_of(traces.entries())
    if found.recommended is None:
        raise nothing
    prepared.response = min(prepared.response, found.recommended.max_response_length)
    reward = 0.0 if found.reward is None else found.reward
    typer.echo(f"reward {reward:.3f}; responses are given {prepared.response} tokens", err=True)
    (made / "prepared.json").write_text(prepared.model_dump_json())


def resumed(out: Path, environment: Environment, steps: int, keys: Mapping[str, object]) -> Prepared:
    """What the training in `out` was prepared with. Raises ConfigError: it cannot go on."""
    try:
        prepared = Prepared.model_validate_json((out / "prepared.json").read_bytes())
    except (OSError, ValueError) as error:
        problem = "holds no training of this command"
        raise ConfigError(problem, file=out, key="--resume", remedy="name its directory by --out") from error
    with held(out):
        pass  # before servers start
    for key, now in _options(keys).items():
        if (before := prepared.keys.get(key)) != now:
            problem = f"began with {key}={before}, and would go on with {now}"
            raise ConfigError(problem, file=out, key="--resume", remedy="repeat the options, or train by another --out")
    if (done := checkpoint(out)) >= steps:
        raise ConfigError(f"has {done} steps already", file=out, key="--steps", remedy=f"ask for more than {done}")
    lock = out / "tools.yaml"
    if differences := anyio.run(_differences, environment, lock):
        problem = "the tools are no longer those of the checkpoint:\n" + "\n".join(differences) + "\n"
        raise LockMismatch(problem, file=lock, remedy="train anew, by another --out")
    return prepared


@contextmanager
def held(out: Path) -> Generator[None]:
    """Locks `out` against other trainings while the block runs. Raises ConfigError: another one has the lock."""
    with (out / "prepared.json").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            problem = "a training is at work there"
            raise ConfigError(problem, file=out, key="--out", remedy="wait for its end") from error
        yield


async def _differences(environment: Environment, lock: Path) -> list[str]:
    async with opened_environment(environment) as gateway:
        entries = lock_entries(gateway.catalogue, environment=environment.name, source=environment.source)
        return compare_locks(read_lock(lock), parse_entries(entries))
