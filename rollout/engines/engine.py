"""The `Engine` protocol: makes a policy and a token builder for each trajectory of a run without a trainer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.sampling import SamplingParameters
from mcp_rollout.rollout.engines.timeouts import Timeouts
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.tokens import template_check
from mcp_rollout.rollout.trace.run_record import TokenIds
from mcp_rollout.rollout.types import ModelTokens, Policy, TokenBuilder


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """A run's options for its engine."""

    engine: str
    """`expert`, `random`, `none`, a model directory, the address of a server, `chat:URL` or
    `MODULE:FACTORY`."""
    tokenizer: str | None = None
    """A directory; the model's own by default."""
    chat_template: str | None = None
    """The text of a template that replaces the model's own."""
    tool_format: str = "hermes"
    """How the model writes thinking and calls: a name in `rollout.formats.FORMATS`."""
    calls_in_text: bool = False
    """Whether a chat API's text is read for calls in `tool_format`, for a server that does not parse them itself. By
    default the API's own field has all calls, and a text that spells one is text."""
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    timeouts: Timeouts = field(default_factory=Timeouts)
    api_key: str | None = field(default=None, repr=False)
    device: str | None = None
    dtype: str | None = None
    max_sequences: int = 8
    """Most concurrent generations, in process."""
    model: str | None = None
    """The model's name in a chat API, None where the API lists one model only; or at another server, None for the first
    that it lists."""
    max_tokens: int | None = None
    """Of one turn, in a chat API's own tokens."""
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further keys of a chat API's requests."""
    max_requests: int | None = None
    """Generations that a server or a chat API is asked for at most, retries included."""


class Engine(Protocol):
    """One for a run."""

    @property
    def name(self) -> str:
        """Recorded in the traces as `Origin.engine`: the kind, and the model if there is one."""
        ...

    @property
    def context_tokens(self) -> int | None:
        """Most tokens of prompt and response together; None for no bound."""
        ...

    @property
    def notes(self) -> list[str]:
        """Limitations of its traces for the reader, a sentence each."""
        ...

    @property
    def token_ids(self) -> TokenIds:
        """What the ids in its traces are; ids that are not a model's cannot be trained on."""
        ...

    def tokens(self) -> TokenBuilder:
        """A builder for one trajectory."""
        ...

    async def policy(self, session: Session, environment: Environment, task: Task, origin: Origin) -> Policy:
        """A policy for one trajectory. Raises GatewayError or RolloutError where the world or the engine breaks."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelEngine:
    """A model in process, or behind an inference server."""

    name: str
    context_tokens: int | None
    notes: list[str]
    make_policy: Callable[[Origin], Policy]
    own_tokens: ModelTokens
    token_ids: TokenIds = TokenIds.MODEL

    def tokens(self) -> TokenBuilder:
        return copy.copy(self.own_tokens)  # trajectories share the tokenizer, not the builder's state

    async def policy(self, session: Session, environment: Environment, task: Task, origin: Origin) -> Policy:
        return self.make_policy(origin)

    def check_template(self, task: Task, tools: Sequence[dict[str, Any]], *, has_user: bool) -> None:
        """Raises ConfigError where the model's template does not render a conversation of such a task."""
        tokens = copy.copy(self.own_tokens)
        template_check.check_template(tokens, task.prompt, task.shown(tools), has_user=has_user, key="--chat-template")
