"""An environment as its YAML file states it: servers, user simulator, reward, limits, thinking."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gateway.config.models import (
    ElicitationConfig,
    GatewayConfig,
    LeaseDirConfig,
    SamplingConfig,
    Seconds,
    ServerConfig,
    read_mapping,
    validate,
)
from gateway.config.servers_file import check_template, expand_sampling, no_servers, parse_servers
from gateway.errors import ConfigError, InvalidValue
from rollout.environment.reward_config import RewardConfig

DEFAULT_ASSISTANT_TURNS = 15


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PromptReference(_Section):
    """A prompt of a server, with its arguments."""

    server: str
    name: str
    arguments: dict[str, str] = {}


class ResourceReference(_Section):
    """A resource of a server."""

    server: str
    uri: str


class SystemPart(_Section):
    """Where a part of the system message comes from: a text, or something that a server has."""

    text: str | None = None
    instructions_of: str | None = None
    prompt: PromptReference | None = None
    resource: ResourceReference | None = None

    @model_validator(mode="after")
    def _one_source(self) -> SystemPart:
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError("give one of text, instructions_of, prompt and resource; for more make it a list")
        return self

    @property
    def server(self) -> str | None:
        """The server it comes from; None for a text."""
        found = self.prompt or self.resource
        return found.server if found else self.instructions_of


class UserConfig(_Section):
    """Which server plays the user (roles start and reply)."""

    server: str


class TasksConfig(_Section):
    """Which server lists the tasks and plays the expert (roles tasks and expert)."""

    server: str


class LimitsConfig(_Section):
    """Bounds of one trajectory; None leaves the decision to the trainer's configuration."""

    assistant_turns: int | None = Field(default=None, ge=1)
    user_turns: int | None = Field(default=None, ge=1)
    tool_calls: int | None = Field(default=None, ge=1)
    parallel_calls: int = Field(default=16, ge=1)
    """Tool calls of one turn that are sent; the policy reads that the rest were not."""
    tokens_per_turn: int | None = Field(default=None, ge=1)
    wall_clock_s: float = Field(default=1800.0, gt=0)
    tell_budget: bool = False
    """Whether tool results and user messages end in a line that says what is left."""


class Keep(StrEnum):
    """Which part of a long result is kept."""

    HEAD = "head"
    TAIL = "tail"
    BOTH = "both"


class CutConfig(_Section):
    """How much of a tool's result the policy reads; the trace keeps all of it."""

    max_tokens: int | None = Field(default=None, ge=16)
    """By the policy's tokenizer, the marker of the cut included; None cuts nothing."""
    keep: Keep = Keep.BOTH


class ResultsConfig(CutConfig):
    """The general rule, and rules of single tools."""

    tools: dict[str, CutConfig] = {}
    """By the name that the policy knows, or a glob of it; the first that fits counts."""
    overflow_tokens: int = Field(default=64, ge=16)
    """Results that exceed the trajectory's token budget are cut so that this many tokens are left to answer with, if
    this many of the cut result can be shown; else the trajectory ends."""


class ThinkingLoss(StrEnum):
    KEEP = "keep"
    MASK = "mask"


class ThinkingReward(StrEnum):
    INCLUDE = "include"
    STRIP = "strip"


class ThinkingContext(StrEnum):
    KEEP = "keep"
    DROP_PREVIOUS = "drop_previous"
    """At each new user message the thinking before it leaves the context, as in the templates that Qwen3 and others
    are served with; thinking between the tool calls that answer one user message stays."""


class ThinkingConfig(_Section):
    """What thinking counts for. It is in the trace in any case."""

    loss: ThinkingLoss = ThinkingLoss.KEEP
    reward: ThinkingReward = ThinkingReward.STRIP
    context: ThinkingContext = ThinkingContext.KEEP
    tokens_per_turn: int | None = Field(default=None, ge=1)
    """Where a turn is still thinking after this many tokens, the thought is closed for it, and it goes on."""


class FilterAction(StrEnum):
    """What becomes of a turn that a filter finds."""

    MARK = "mark"
    """It is noted in the trace and counted."""
    MASK = "mask"
    """Its tokens leave the loss."""
    MASK_TRAJECTORY = "mask_trajectory"
    """All of the trajectory's tokens leave the loss (SimpleTIR); its reward still counts among its siblings."""
    PENALISE = "penalise"
    """`penalty` is subtracted from the reward."""
    END = "end"
    """The trajectory ends before the turn has acted, and is scored."""


class FilterConfig(_Section):
    """One filter."""

    action: FilterAction = FilterAction.MARK
    penalty: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    """For each turn that is found, under the action `penalise`."""

    @model_validator(mode="after")
    def _penalty_is_used(self) -> Self:
        if "penalty" in self.model_fields_set and self.action is not FilterAction.PENALISE:
            raise InvalidValue(f"has a penalty, which `action: {self.action}` never takes", "write action: penalise")
        return self


class RepeatedCallsConfig(FilterConfig):
    """Turns with a call that was made before, with the same arguments."""

    times: int = Field(default=3, ge=2)
    """From which time on, the first call included."""


class LongThinkingConfig(FilterConfig):
    """Turns that think too long."""

    tokens: int | None = Field(default=None, ge=1)
    """More thinking tokens than this are too many; None finds none."""

    @model_validator(mode="after")
    def _finds_something(self) -> Self:
        if self.tokens is None and "action" in self.model_fields_set:
            raise InvalidValue("finds nothing without tokens", "give the most thinking tokens of a turn")
        return self


class FiltersConfig(_Section):
    """What is looked for in every turn, and what is done about it."""

    void: FilterConfig = FilterConfig()
    """Turns with neither a readable call nor an answer: empty, cut, broken or repeated text."""
    repeated_calls: RepeatedCallsConfig = RepeatedCallsConfig()
    long_thinking: LongThinkingConfig = LongThinkingConfig()

    @field_validator("*", mode="before")
    @classmethod
    def _an_action_alone_needs_no_mapping(cls, value: Any) -> Any:
        return {"action": value} if isinstance(value, str) else value


class Environment(_Section):
    """Everything a trajectory needs besides a policy, under one name."""

    name: str
    file: str = ""
    """Where it was read from, for messages."""
    description: str = ""
    servers: dict[str, ServerConfig] = Field(min_length=1)
    system: tuple[SystemPart, ...] = ()
    """What rows begin with, joined by blank lines; one part needs no list."""
    user: UserConfig | None = None
    reward: RewardConfig = RewardConfig()
    tasks: TasksConfig | None = None
    limits: LimitsConfig = LimitsConfig()
    results: ResultsConfig = ResultsConfig()
    thinking: ThinkingConfig = ThinkingConfig()
    filters: FiltersConfig = FiltersConfig()
    max_sessions: int = Field(default=64, ge=1)
    lease_timeout_s: float = Field(default=1800.0, gt=0)
    reset_timeout_s: Seconds = 30
    release_timeout_s: Seconds = 10
    lease_dir: LeaseDirConfig = LeaseDirConfig()

    elicitation: ElicitationConfig | None = None
    sampling: SamplingConfig | None = None
    max_requests_per_call: int = Field(default=10, ge=1)

    @field_validator("system", mode="before")
    @classmethod
    def _one_part_needs_no_list(cls, value: Any) -> Any:
        if value is None:
            return ()
        return [value] if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _references_exist(self) -> Environment:
        references = {
            **{f"system.{index}": part.server for index, part in enumerate(self.system)},
            "user.server": self.user.server if self.user else None,
            "reward.server": self.reward.server,
            "tasks.server": self.tasks.server if self.tasks else None,
            "elicitation.server": self.elicitation.server if self.elicitation else None,
        }
        for key, server in references.items():
            if server is not None and server not in self.servers:
                raise ValueError(f"{key} names {server!r}, which is not one of the servers {sorted(self.servers)}")
        return self

    def gateway_config(self) -> GatewayConfig:
        return GatewayConfig(
            servers=self.servers,
            max_sessions=self.max_sessions,
            lease_timeout_s=self.lease_timeout_s,
            reset_timeout_s=self.reset_timeout_s,
            release_timeout_s=self.release_timeout_s,
            elicitation=self.elicitation,
            sampling=self.sampling,
            max_requests_per_call=self.max_requests_per_call,
            lease_dir=self.lease_dir,
        )


def load_environment(name: str | Path, directory: str | Path) -> Environment:
    """Read the environment `name` from `directory`, or from `name` itself where that is a YAML file.

    Raises:
        ConfigError: there is no such environment, or its file is wrong; the message names file, key and remedy.
    """
    path = Path(name) if str(name).endswith((".yaml", ".yml")) else Path(directory) / f"{name}.yaml"
    if not path.is_file():
        raise _unknown(str(name), path, directory)
    raw = read_mapping(path)
    if "servers" not in raw:
        raise no_servers(raw, path, key="servers", expected="expected servers: {NAME: {command: ...}}")
    servers = parse_servers(_required_by_default(raw.pop("servers")), file=path)
    raw = expand_sampling(raw, file=path)
    environment = validate(Environment, {"name": path.stem, **raw, "file": str(path), "servers": servers}, file=path)
    check_template(environment.lease_dir, file=path)
    return environment


def _required_by_default(servers: Any) -> Any:
    """An environment without one of its servers is another environment, so here they default to required."""
    if not isinstance(servers, dict):
        return servers
    entries = cast("dict[str, Any]", servers)
    return {
        name: {"required": True, **cast("dict[str, Any]", entry)} if isinstance(entry, dict) else entry
        for name, entry in entries.items()
    }


def _unknown(name: str, path: Path, directory: str | Path) -> ConfigError:
    if name.endswith((".yaml", ".yml")):
        return ConfigError("no such file", file=path, remedy="correct the path")
    known = environment_names(directory)
    near = get_close_matches(name, known, n=1)
    remedy = (
        f"did you mean {near[0]!r}?" if near else f"known environments in {directory}: {', '.join(known) or 'none'}"
    )
    return ConfigError(f"unknown environment {name!r}", file=path, remedy=remedy)


def environment_names(directory: str | Path) -> Sequence[str]:
    """Names of the environments in a directory, sorted."""
    return sorted(path.stem for path in Path(directory).glob("*.yaml"))
