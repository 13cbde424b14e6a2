"""How a run is resumed: its settings and its environments are those of its run records, and some are done."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic_core import to_jsonable_python

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.rollout.engines.engine import Engine, EngineOptions
from mcp_rollout.rollout.engines.scripted import WITHOUT_MODEL
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.loop.agent import agent_settings
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.run_record import SUFFIX, RunRecord, describe_run, read_run_records

Settings = dict[str, str | int | float | None]
"""Values of options by the option's name without its dashes."""


@dataclass(frozen=True, slots=True)
class RunKey:
    """Identity of a trajectory of `mcp-rollout run`, the same when an interrupted run is resumed."""

    engine: str
    environment: str
    task: str
    row: int
    sample: int

    @classmethod
    def of(cls, task: Task, origin: Origin) -> RunKey:
        return cls(origin.engine, task.environment, task.task, origin.row, origin.sample)


def is_done(trace: Trace) -> bool:
    """Whether a recorded trajectory ended and was scored, so that a resumed run does not play it again."""
    return trace.reward is not None and trace.failure is None


def engine_settings(options: EngineOptions) -> Settings:
    """The settings that affect an engine's trajectories."""
    if options.engine in ("expert", "none"):
        return {}
    sampling = options.sampling
    settings: Settings = {"seed": sampling.seed}
    if options.engine.startswith("chat:"):
        settings["engine"] = options.engine  # a name of a model means something at its own address only
    if options.engine not in WITHOUT_MODEL:
        settings |= {"temperature": sampling.temperature, "top-p": sampling.top_p, "top-k": sampling.top_k}
        settings["tool-format"] = options.tool_format
        settings["chat-template"] = options.chat_template
    return settings


def compare_settings(directory: Path, settings: Settings) -> None:
    """Raises ConfigError where the run in `directory` had other settings; a directory without a run passes."""
    for run, before in read_run_records(directory).items():
        for name, value in settings.items():
            if before.settings.get(name, value) != value:
                problem = f"the run in this directory had {before.settings[name]!r}, not {value!r}"
                file, remedy = directory / f"{run}{SUFFIX}", "give it again, or name another --out"
                raise ConfigError(problem, file=file, key=f"--{name}", remedy=remedy)


def compare_records(directory: Path, kept: Container[str], now: RunRecord) -> None:
    """Compare an environment with the run records of its trajectories that a resumed run keeps.

    Args:
        kept: names of those records; trajectories without one pass.
        now: the record of what is missing.

    Raises:
        ConfigError: they have other limits, thinking, results, strategies, filters, rewards or tools.
    """
    # As in a record that was read: an infinite number is null there.
    sections = to_jsonable_python(now.environment, inf_nan_mode="null")
    for before in (record for name, record in read_run_records(directory).items() if name in kept):
        # Reward and filters last, which `rescore` can change.
        for section in ("limits", "thinking", "results", "strategy", "filters", "reward"):
            for name, value in sections[section].items():
                if before.environment.get(section, {}).get(name, value) != value:
                    problem = f"is not what it was for the traces in {directory}"
                    rescored = "resume what `rescore` makes of them, " if section in ("filters", "reward") else ""
                    remedy = f"set it back, {rescored}or name another --out"
                    raise ConfigError(problem, file=sections["file"], key=f"{section}.{name}", remedy=remedy)
        if differing := dict(before.tool_digests.items() ^ now.tool_digests.items()):
            problem = f"holds traces of {sections['name']} with other tools: {', '.join(sorted(differing)[:10])}"
            raise ConfigError(problem, file=directory, key="--out", remedy="name another directory")


def evaluation_record(
    environment: Environment, gateway: Gateway, options: EngineOptions, engine: Engine, settings: Settings
) -> RunRecord:
    """What the trajectories of an environment share. Reads files and asks git: not for an event loop."""
    return describe_run(
        "evaluation",
        environment,
        gateway,
        engine=engine.name,
        token_ids=engine.token_ids,
        model=options.engine if Path(options.engine).is_dir() else options.tokenizer,
        chat_template=options.chat_template,
        sampling=asdict(options.sampling),
        settings=settings | agent_settings(environment),
    )
