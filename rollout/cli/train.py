"""`train`: rows, lock and sizes, then verl's own trainer in a process of its own, followed step by step."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from shutil import disk_usage, rmtree
from typing import Annotated, Any

import anyio
import typer

from mcp_rollout.gateway.config.pydantic_errors import near
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.new_directory import new_directory
from mcp_rollout.rollout.cli.option_models import with_option_models
from mcp_rollout.rollout.cli.options import INTERRUPTED, ChatTemplateFile, TaskSource
from mcp_rollout.rollout.cli.train_preparation import LONGEST, Prepared, has_own_reward, held, prepare, probe, resumed
from mcp_rollout.rollout.cli.train_report import checkpoint, follow, print_ending
from mcp_rollout.rollout.environment.config import INCLUDED_CONFIGS, Environment
from mcp_rollout.rollout.environment.overrides import overridden
from mcp_rollout.rollout.extras import needed
from mcp_rollout.rollout.loop.reward import check_reward, check_rewarded
from mcp_rollout.rollout.tokens.chat_template import ChatTemplate, read_chat_template

REFUSED, STOPPED = 2, 3
"""Exit statuses of the trainer: before it has begun, and where it has stopped itself."""
_LOGGERS = "wandb mlflow swanlab vemlp_wandb tensorboard clearml trackio rl_insight".split()
"""Those of verl 0.9.1, beside console and file."""
_MCP = "actor_rollout_ref.rollout.custom.mcp"
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
    if not has_own_reward(changes):
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
    prepared = resumed(out, environment, steps, keys) if resume else None
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
                prepared = prepare(environment, template, tool_format, room, gpus > 0, keys, changes, made)
                probe(what, source, model, chat_template, prepared, made)
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
        with held(out):
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
        return int(json.loads(file.read_bytes()).get("max_position_embeddings", 2 * LONGEST))
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
