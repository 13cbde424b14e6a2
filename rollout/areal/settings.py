"""Our section `mcp` of AReaL's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from mcp_rollout.gateway.config.pydantic_errors import validate
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.sections import Strategy
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.training.settings import TrainingSettings


class Settings(TrainingSettings):
    """Our section. It travels to rollout processes as JSON."""

    key = "mcp"
    workers_key = "rollout.backend"

    tool_config_path: Path | None = None
    """The lock: a file of tool definitions from `mcp-rollout tool-config`."""
    tool_format: str = "hermes"
    """How the model writes tool calls; one of the formats of `docs/train.md`."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Keyword arguments of the chat template."""
    prompt_tokens: int = Field(default=4096, ge=1)
    """Longest prompt; a longer one is refused."""
    response_tokens: int = Field(default=8192, ge=1)
    """All turns of a trajectory together: sampled, tool and user tokens."""

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> Settings:
        """Validate the section and make its paths absolute.

        Raises:
            ConfigError: a key is missing, unknown or out of range, or a directory does not exist.
        """
        settings = validate(cls, dict(section), file=None, key=cls.key)
        return settings.placed(settings.environments_dir)

    def limits_for(self, environment: Environment, *, max_new_tokens: int, max_tokens: int) -> Limits:
        """Limits of one trajectory.

        Args:
            max_new_tokens: AReaL's bound on one generation.
            max_tokens: AReaL's bound on prompt and response together.
        """
        own = environment.limits.tokens_per_turn
        each = max_new_tokens if own is None else min(own, max_new_tokens)
        return Limits.of(
            environment.limits.model_copy(update={"tokens_per_turn": each}),
            prompt_tokens=self.prompt_tokens,
            response_tokens=self.response_tokens,
            context_tokens=max_tokens,
        )

    def check_rows(self, environment: Environment) -> None:
        """Raises ConfigError where trajectories are rolled out in a way that is verl's alone."""
        use = environment.strategy.use
        if use not in (Strategy.CHAIN, Strategy.COMPACT):
            problem = f"{use} is for verl: AReaL rolls out chains, and compact"
            remedy = f"set {self.key}.environment.strategy.use=chain"
            raise ConfigError(problem, file=environment.file or None, key="strategy.use", remedy=remedy)
