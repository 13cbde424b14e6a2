"""An engine of which a test can tell that it has been asked for a completion."""

from __future__ import annotations

import anyio

from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.engine import Engine
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.types import Completion, Policy, TokenBuilder


class Watched:
    """`engine`, with `asked` set as soon as one of its policies is to generate."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.asked = anyio.Event()
        self.name, self.notes, self.context_tokens = engine.name, engine.notes, engine.context_tokens
        self.token_ids = engine.token_ids

    def tokens(self) -> TokenBuilder:
        return self.engine.tokens()

    async def policy(self, session: Session, environment: Environment, task: Task, origin: Origin) -> Policy:
        return _Watched(await self.engine.policy(session, environment, task, origin), self.asked)

    async def in_the_midst(self) -> None:
        """Wait until a generation has begun, and another one that began later has ended."""
        await self.asked.wait()
        later = await self.engine.policy(None, None, None, Origin(row=99))  # type: ignore[arg-type]  # not needed
        await later.generate([40, 41, 42, 43], max_tokens=20, turn=0)


class _Watched:
    def __init__(self, policy: Policy, asked: anyio.Event) -> None:
        self._policy, self._asked = policy, asked

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        self._asked.set()
        return await self._policy.generate(ids, max_tokens=max_tokens, turn=turn)
