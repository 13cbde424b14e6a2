"""`train`: rows, lock and sizes, then verl's own trainer in a process of its own, followed step by step."""

from __future__ import annotations

import fcntl
import json
import shlex
import subprocess
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from math import ceil
from pathlib import Path
from shutil import disk_usage, rmtree
from typing import Annotated, Any

import anyio
import typer
from pydantic import BaseModel

from mcp_rollout.gateway.catalogue.names import policy_tools
from mcp_rollout.gateway.catalogue.tool_config import compare_locks, lock_entries, parse_entries, read_lock, write_lock
from mcp_rollout.gateway.config.pydantic_errors import near
from mcp_rollout.gateway.errors import ConfigError, LockMismatch
from mcp_rollout.rollout.cli.new_directory import new_directory
from mcp_rollout.rollout.cli.option_models import with_option_models
from mcp_rollout.rollout.cli.options import INTERRUPTED, ChatTemplateFile, TaskSource
from mcp_rollout.rollout.cli.train_report import checkpoint, follow, print_ending
from mcp_rollout.rollout.environment.config import INCLUDED_CONFIGS, Environment
from mcp_rollout.rollout.environment.overrides import overridden
from mcp_rollout.rollout.environment.parquet import write_parquet
from mcp_rollout.rollout.environment.row_validation import AGENT
from mcp_rollout.rollout.environment.rows import environment_tasks
from mcp_rollout.rollout.environment.startup import opened_environment
from mcp_rollout.rollout.environment.task import Task
from mcp_rollout.rollout.evaluation.summary import note_on_rewards
from mcp_rollout.rollout.extras import needed
from mcp_rollout.rollout.loop.reward import check_reward, check_rewarded
from mcp_rollout.rollout.tokens.chat_template import ChatTemplate, read_chat_template
from mcp_rollout.rollout.tokens.template_check import formats_shown
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.stats import STEP, statistics_of

REFUSED, STOPPED = 2, 3
"""Exit statuses of the trainer: before it has begun, and where it has stopped itself."""
PROBE_ROWS, PROBE_SAMPLES = 4, 2
LEAST_ROWS = 2
_LOGGERS = "wandb mlflow swanlab vemlp_wandb tensorboard clearml trackio rl_insight".split()
"""Those of verl 0.9.1, beside console and file."""
_MCP = "actor_rollout_ref.rollout.custom.mcp"
_LONGEST, _LONGEST_REHEARSED = 8192, 512
"""Tokens after a prompt that the probe allows for, with a GPU and without one."""
_HELD_OUT, _HELD_OUT_REHEARSED = 128, 16
"""Rows that are played before and after, at most."""
_CHECKPOINT = 6
"""A checkpoint in bytes for each of a model in bfloat16: weights, and Adam's two moments, in float32."""

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """What is trained, and how."""

    steps: Annotated[
        int | None, typer.Option(min=1, help="Updates; by default 100, and 2 where there is no GPU: a rehearsal.")
    ] = None
    recipe: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of configs/recipe: an algorithm, or sizes; several as A,B.")
    ] = None
    strategy: Annotated[str | None, typer.Option(help="How groups are rolled out; the environment's by default.")] = (
        None
    )
    lora: Annotated[int | None, typer.Option(metavar="RANK", min=1, help="Train an adapter of this rank.")] = None
    kl: Annotated[
        float | None, typer.Option(metavar="WEIGHT", min=0, help="Weight of the divergence from the first weights.")
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Of the order of rows, and of sampling.")] = 0

    def overrides(self) -> dict[str, object]:
        given: dict[str, object] = {"data.seed": self.seed, f"{_MCP}.seed": self.seed}
        if self.recipe is not None:
            given["recipe"] = _recipes(self.recipe)
        if self.strategy is not None:
            given[f"++{_MCP}.environment.strategy"] = self.strategy
        if self.lora is not None:
            given |= {"actor_rollout_ref.model.lora_rank": self.lora, "actor_rollout_ref.model.lora_alpha": self.lora}
        if self.kl is not None:
            given |= {"actor_rollout_ref.actor.use_kl_loss": True, "actor_rollout_ref.actor.kl_loss_coef": self.kl}
        return given


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Where it is trained."""

    engine: Annotated[
        str | None, typer.Option(help="Of configs/engine: sglang, vllm, transformers, cpu; what is here by default.")
    ] = None
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs to use; all of this machine by default.")] = None

    def found(self, here: int) -> tuple[str, int]:
        """The engine, and the number of GPUs of those that are here. Raises ConfigError: there are not so many."""
        gpus = here if self.gpus is None else self.gpus
        if gpus > here:
            raise ConfigError(f"{gpus} are asked for, and {here or 'none'} found", key="--gpus", remedy="ask for fewer")
        known = sorted(path.stem for path in (INCLUDED_CONFIGS / "engine").glob("*.yaml"))
        if self.engine is not None and self.engine not in known:
            raise ConfigError(f"no engine {self.engine!r}", key="--engine", remedy=f"one of {', '.join(known)}")
        installed = next((name for name in ("sglang", "vllm") if find_spec(name)), "transformers")
        return self.engine or (installed if gpus else "cpu"), gpus


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


@app.command()
@with_option_models
def train(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="An environment, or a servers file with --tasks.")],
    model: Annotated[Path, typer.Option(metavar="DIR", help="The directory of the model to train.")],
    source: TaskSource,
    method: Method,
    machine: Machine,
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="Any key of verl's configuration.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The directory to make; by default outputs/train-NAME.")
    ] = None,
    logger: Annotated[str | None, typer.Option(help="A further logger of verl's: wandb, tensorboard, ...")] = None,
    tool_format: Annotated[
        str | None, typer.Option(help="How the model writes calls; by default as its chat template does.")
    ] = None,
    chat_template: ChatTemplateFile = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --out.")] = False,
    prints: Annotated[
        bool, typer.Option("--print", help="Prepare all, and print the command that trains instead of running it.")
    ] = False,
) -> int:
    """Train a model on an environment's tasks with verl's GRPO.

    Writes rows, lock, traces, checkpoints and logs to --out alone. Exit status 2 where the training cannot work, 3
    where it has stopped itself, 130 after an interrupt.
    """
    with needed("verl", "training"):
        from mcp_rollout.rollout.verl.launch import command, composed, gpus_here
    environment = source.load(what)
    changes = changes or []
    if not _has_own_reward(changes):
        check_rewarded(environment)
    check_reward(environment)
    out = out or Path("outputs", f"train-{environment.name.replace(':', '-')}")
    engine, gpus = machine.found(gpus_here())
    steps = method.steps or (100 if gpus else 2)
    template, room = _template(model, chat_template), _positions(model)
    keys = _chosen(environment, model, engine, gpus, steps, chat_template, logger) | method.overrides()
    if not gpus:
        rehearsal = "" if method.steps else "; 2 steps rehearse the whole path, --steps asks for more"
        typer.echo(f"trained without a GPU, engine={engine}{rehearsal}", err=True)
    prepared = _resumed(out, environment, steps, keys) if resume else None
    if prepared is None:
        _check_place(out, model)
    else:
        changes = [*prepared.changes, *changes]
        typer.echo(f"goes on after step {checkpoint(out)}, with the rows, the lock and the sizes in {out}", err=True)
    config = composed(keys, changes)
    own = config["actor_rollout_ref"]["rollout"]["custom"]["mcp"]["environment"]
    overridden(environment, own, key=f"{_MCP}.environment")
    if prepared is None:
        try:
            with new_directory(out) as made:
                prepared = _prepare(environment, template, tool_format, room, gpus > 0, keys, changes, made)
                _probe(what, source, model, chat_template, prepared, made)
        except KeyboardInterrupt:
            typer.echo(f"interrupted before the training: nothing is left of {out}", err=True)
            return INTERRUPTED
    metrics = next(path for number in count(1) if not (path := out.absolute() / f"steps-{number}.jsonl").exists())
    is_given = any(change.startswith("data.train_batch_size=") for change in changes)
    rows = config["data"]["train_batch_size"] if is_given else prepared.rows
    keys |= _updates(composed(keys, []), rows) if method.recipe else {}
    keys |= _written(out, prepared, steps, metrics)
    arguments = command(keys, changes)
    typer.echo(f"$ {shlex.join(arguments)}", err=not prints)
    if prints:
        return 0
    try:
        with _held(out):
            status = anyio.run(follow, arguments, out, metrics, steps)
    except KeyboardInterrupt:
        kept = checkpoint(out)
        left = f"the checkpoint of step {kept} is kept" if kept else "there is no checkpoint yet"
        typer.echo(f"interrupted: {left}; the same command with --resume goes on from there", err=True)
        return INTERRUPTED
    if status == REFUSED and not resume and not metrics.exists():
        rmtree(out)  # which this command has made, and in which nothing has been played
    elif status == 0:
        print_ending(out, what, steps, response=prepared.response, held_out=prepared.held_out)
    else:
        typer.echo(f"verl's whole output is in {out / 'train.log'}", err=True)
    return status if status in (0, REFUSED, STOPPED) else 1


def _chosen(
    environment: Environment,
    model: Path,
    engine: str,
    gpus: int,
    steps: int,
    chat_template: Path | None,
    logger: str | None,
) -> dict[str, object]:
    """verl's keys for what the command was given, and its own defaults."""
    template = {} if chat_template is None else {f"{_MCP}.chat_template": chat_template.absolute()}
    return {
        "engine": engine,
        "actor_rollout_ref.model.path": model.absolute(),
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": INCLUDED_CONFIGS / "agent_loop.yaml",
        f"{_MCP}.environments_dir": Path(environment.file).parent.absolute(),
        "trainer.n_gpus_per_node": max(1, gpus),
        "trainer.total_training_steps": steps,
        "trainer.total_epochs": steps,
        "trainer.save_freq": max(1, steps // 5),
        "trainer.max_actor_ckpt_to_keep": 2,
        "trainer.logger": ["console", "file", *_loggers(logger)],
        **template,
    }


def _template(model: Path, chat_template: Path | None) -> ChatTemplate:
    if not model.is_dir():
        raise ConfigError("no such directory", file=model, key="--model", remedy="name a model's directory")
    given = read_chat_template(chat_template, key="--chat-template")
    template = ChatTemplate(model, chat_template=given, key="--model")
    template.render([{"role": "user", "content": "."}], ())  # a model without one is refused before servers start
    return template


def _positions(model: Path) -> int:
    """The longest sequence that the model reads. Raises ConfigError: there is no configuration of a model."""
    file = model / "config.json"
    try:
        return int(json.loads(file.read_bytes()).get("max_position_embeddings", 2 * _LONGEST))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        problem = f"is no configuration of a model: {error}"
        raise ConfigError(problem, file=file, key="--model", remedy="name a model's directory") from error


def _recipes(names: str) -> str | list[str]:
    known = [path.stem for path in (INCLUDED_CONFIGS / "recipe").glob("*.yaml")]
    given = names.strip("[]").split(",")
    for name in given:
        if name not in known:
            raise ConfigError(f"no recipe {name!r}", key="--recipe", remedy=near(name, known, "recipes"))
    return given[0] if len(given) == 1 else given


def _loggers(name: str | None) -> list[str]:
    if name is None:
        return []
    if name not in _LOGGERS:
        raise ConfigError(f"verl has no logger {name!r}", key="--logger", remedy=near(name, _LOGGERS, "loggers"))
    if find_spec(name) is None:
        raise ConfigError(f"{name} is not installed", key="--logger", remedy=f"pip install {name}")
    return [name]


def _check_place(out: Path, model: Path) -> None:
    """Refuse a directory that is there, and one where two checkpoints do not fit."""
    if out.exists():
        problem, remedy = "is there already", "name another directory, or go on with --resume"
        raise ConfigError(problem, file=out, key="--out", remedy=remedy)
    there = next(path for path in out.absolute().parents if path.is_dir())
    size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    needed, free = 2 * _CHECKPOINT * size, disk_usage(there).free
    if free < needed:
        problem = f"two checkpoints of this model may need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        raise ConfigError(problem, file=out, key="--out", remedy="name a directory with more room")


def _prepare(
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
    if not _has_own_reward(changes) and (note := note_on_rewards(environment, tasks)):
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
        response=min(_LONGEST if has_gpu else _LONGEST_REHEARSED, room // STEP * STEP),
        tool_format=tool_format,
        held_out=bool(splits["test"]),
        keys=_options(keys),
        changes=changes,
    )


def _tasks_file(environment: Environment) -> Path | str:
    file = None if environment.tasks is None else environment.tasks.file
    return file or environment.file


def _has_own_reward(changes: Iterable[str]) -> bool:
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


def _probe(
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


def _resumed(out: Path, environment: Environment, steps: int, keys: Mapping[str, object]) -> Prepared:
    """What the training in `out` was prepared with. Raises ConfigError: it cannot go on."""
    try:
        prepared = Prepared.model_validate_json((out / "prepared.json").read_bytes())
    except (OSError, ValueError) as error:
        problem = "holds no training of this command"
        raise ConfigError(problem, file=out, key="--resume", remedy="name its directory by --out") from error
    with _held(out):
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
def _held(out: Path) -> Generator[None]:
    """Nobody else trains in `out` meanwhile. Raises ConfigError: somebody does."""
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


def _updates(default: Mapping[str, Any], rows: int) -> dict[str, object]:
    """As many updates of a step as the configuration has by default, with another number of rows."""
    update = default["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"]
    if isinstance(update, str):  # all rows of the step, by reference
        return {}
    return {"actor_rollout_ref.actor.ppo_mini_batch_size": max(1, update * rows // default["data"]["train_batch_size"])}


def _written(out: Path, prepared: Prepared, steps: int, metrics: Path) -> dict[str, object]:
    """verl's keys for what lies in `out`; absolute, so that the command does the same in any directory."""
    home = out.absolute()
    return {
        "data.train_files": home / "train.parquet",
        "data.val_files": home / ("test.parquet" if prepared.held_out else "train.parquet"),
        "data.train_batch_size": prepared.rows,
        "data.max_prompt_length": prepared.prompt,
        "data.max_response_length": prepared.response,
        "actor_rollout_ref.rollout.n": prepared.samples,
        "actor_rollout_ref.rollout.multi_turn.format": prepared.tool_format,
        "actor_rollout_ref.rollout.multi_turn.tool_config_path": home / "tools.yaml",
        "trainer.val_before_train": prepared.held_out,
        "trainer.test_freq": steps if prepared.held_out else -1,
        "trainer.default_local_dir": home,
        "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH": metrics,
        "hydra.run.dir": home / "hydra",
    }
