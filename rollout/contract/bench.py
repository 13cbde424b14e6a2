"""What every clause is examined with: running servers, tasks to play, leases, scripts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from gateway.gateway import Gateway
from gateway.leases.session import Session
from gateway.types import Role
from rollout.contract.answers import Opening, Reply, Score, Script, TaskItem, TaskList, Turn
from rollout.contract.play import Play, random_script
from rollout.environment.config import Environment
from rollout.environment.harness import ask


class Broken(Exception):
    """The clause is not kept; `str()` says what was seen."""


class Untested(Exception):
    """The clause cannot be examined here; `str()` says why."""


@dataclass(kw_only=True)
class Bench:
    """One environment under examination."""

    environment: Environment
    gateway: Gateway
    items: list[TaskItem] = field(default_factory=list[TaskItem])
    """Tasks to play, from the test split first; never empty once the clause `tasks` was examined."""
    user_varies: bool = False
    """Whether the user is a model or a person, whose words may differ from one time to the next."""

    @asynccontextmanager
    async def lease(self, item: TaskItem | None, gateway: Gateway | None = None) -> AsyncGenerator[Session]:
        """A session whose servers are reset to the task; not at all where it is None."""
        # Reset here and not by the lease: a reset that fails must not look like a lease that does.
        chosen, seed = gateway or self.gateway, item.seed if item else 0
        async with chosen.lease(trajectory=f"check-{uuid4().hex}", task=None, seed=seed) as session:
            if item is not None:
                await session.reset(item.task)
            yield session

    async def tasks(self, session: Session, split: str, limit: int) -> list[TaskItem]:
        assert self.environment.tasks is not None
        arguments = {"split": split, "limit": limit}
        listed, _ = await ask(session, Role.TASKS, arguments, TaskList, server=self.environment.tasks.server)
        return listed.tasks

    async def script(self, session: Session, item: TaskItem) -> list[Turn]:
        """The expert's turns, or random ones where there is no expert."""
        return await self.expert(session, item) or random_script(session, seed=item.seed)

    async def expert(self, session: Session, item: TaskItem) -> list[Turn] | None:
        """None where there is none."""
        tasks = self.environment.tasks
        if tasks is None or not session.has(Role.EXPERT, tasks.server):
            return None
        arguments = {"task": item.task, "seed": item.seed}
        script, _ = await ask(session, Role.EXPERT, arguments, Script, server=tasks.server)
        return script.turns

    async def play(self, session: Session, item: TaskItem) -> Play:
        """A trajectory that has begun, with the expert's script or a random one."""
        play = Play(self.environment, session, item, await self.script(session, item))
        await play.begin()
        return play

    async def solo(self, item: TaskItem, gateway: Gateway | None = None) -> tuple[list[object], Score | None]:
        """What is seen of a trajectory that is alone, and its score."""
        async with self.lease(item, gateway) as session:
            play = await self.play(session, item)
            while await play.step():
                pass
            return play.seen(user=not self.user_varies), await play.score()

    async def opening(self, session: Session, server: str) -> str:
        started, _ = await ask(session, Role.START, {}, Opening, server=server)
        return started.message

    async def reply(self, session: Session, seq: int, message: str) -> Reply:
        assert self.environment.user is not None
        arguments = {"seq": seq, "message": message}
        reply, _ = await ask(session, Role.REPLY, arguments, Reply, server=self.environment.user.server)
        return reply
