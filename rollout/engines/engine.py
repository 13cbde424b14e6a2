"""What plays in a run without a trainer: the source of policies, and of the tokens that they speak."""

from __future__ import annotations

from typing import Protocol

from gateway.leases.session import Session
from rollout.environment.config import Environment
from rollout.environment.task import Origin, Task
from rollout.types import Policy, TokenBuilder


class Engine(Protocol):
    """One for a run; it makes a policy and a token builder for each trajectory."""

    @property
    def name(self) -> str:
        """What `Origin.engine` of its traces says: the kind, and the model where there is one."""
        ...

    @property
    def context_tokens(self) -> int | None:
        """Most tokens that prompt and response may have together; None where there is no bound."""
        ...

    @property
    def notes(self) -> list[str]:
        """What whoever reads its traces should know, a sentence each."""
        ...

    def tokens(self) -> TokenBuilder:
        """A builder for one trajectory."""
        ...

    async def policy(self, session: Session, environment: Environment, task: Task, origin: Origin) -> Policy:
        """Raises GatewayError or RolloutError where the world or the engine breaks at once."""
        ...
