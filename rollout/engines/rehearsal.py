"""Play one trajectory without a model and keep nothing of it: what finds faults of an environment before a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from uuid import uuid4

import anyio

from mcp_rollout.gateway.errors import GatewayError, HarnessError
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import Role, Scope
from mcp_rollout.rollout.engines.scripted import RandomPolicy, expert_script
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.harness import ListedTask
from mcp_rollout.rollout.environment.reward_config import Component
from mcp_rollout.rollout.environment.sections import StrategyConfig
from mcp_rollout.rollout.environment.task import Task
from mcp_rollout.rollout.environment.task_file import FileTask
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import PolicyFor, roll_out
from mcp_rollout.rollout.loop.world_calls import examine, prepare
from mcp_rollout.rollout.tokens.chatml import ByteTokens
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore

_WORLDS, IDLE_S = 16, 60.0
"""Worlds at a time that are examined without a turn, and seconds after which no further one is."""
MOST_BYTES = 1 << 24
"""Of a trajectory, whose tokens are bytes."""


async def rehearse(trace: Trace, *, environment: Environment, gateway: Gateway, policy_for: PolicyFor) -> None:
    """Roll out a trajectory in bytes, as `roll_out`, which fills the trace.

    It is a chain, which one trajectory is under all strategies: lengths of compaction are not in bytes. Nor are an
    environment's own limits of a turn.
    """
    own = environment.limits.model_copy(update={"tokens_per_turn": None})
    with TemporaryDirectory(prefix="mcp-rollout-rehearsal-") as directory:
        store = TraceStore(directory)
        try:
            await roll_out(
                trace,
                environment=environment.model_copy(update={"strategy": StrategyConfig()}),
                gateway=gateway,
                policy_for=policy_for,
                tokens=ByteTokens(),
                limits=Limits.of(own, response_tokens=MOST_BYTES),
                store=store,
            )
        finally:
            store.close()


async def script_for(environment: Environment, session: Session, task: Task) -> Sequence[str]:
    """The expert's turns where there is an expert, else a random call and an answer. Raises as `expert_script`."""
    server = environment.tasks.server if environment.tasks is not None else None
    if server is not None and session.has(Role.EXPERT, server):
        return await expert_script(session, task, server)
    tokens = ByteTokens()
    policy = RandomPolicy(session, tokens.encode, stop="", seed=task.seed)
    return [tokens.decode((await policy.generate([], max_tokens=MOST_BYTES, turn=0)).ids), "Done."]


@dataclass(kw_only=True, slots=True)
class IdleWorlds:
    """Tasks whose worlds were prepared and examined without a turn, by their position."""

    checked: int = 0
    """Those that were examined and have checks."""
    left: int = 0
    """Those with calls that were not examined: for want of time, or since they write where all worlds are one."""
    held: list[int] = field(default_factory=list[int])
    """Those of which all checks hold."""
    paid: list[int] = field(default_factory=list[int])
    """Those of them that earn what the task gives by that alone."""
    unprepared: list[str] = field(default_factory=list[str])
    """How a `setup` fails, for each task where it does."""


async def idle_worlds(
    environment: Environment, gateway: Gateway, tasks: Sequence[ListedTask | Task], *, seconds: float = IDLE_S
) -> IdleWorlds:
    """Make the calls of each task's `setup` and `check` once, in a world of its own.

    Args:
        seconds: after which no further world is begun; each is bounded by the environment's own limits of time.
    """
    having = [number for number, task in enumerate(tasks) if task.setup or task.check]
    found, ends_at = IdleWorlds(left=len(having)), anyio.current_time() + seconds
    apart = _tools_apart(environment, gateway)
    todo = iter([n for n in having if {call.name for call in (*tasks[n].setup, *tasks[n].check)} <= apart])

    async def examine_next() -> None:
        for number in todo:  # one iterator for all, so that each is taken once
            if anyio.current_time() > ends_at:
                return
            task = tasks[number]
            try:
                async with gateway.lease(trajectory=f"check-{uuid4().hex}", task=task.task, seed=task.seed) as session:
                    await prepare(session, task.setup, where=place(task))
                    holds = [each.holds for each in await examine(session, task.check)]
            except GatewayError as error:  # a trajectory of the task would tell of a world that broke, too
                if not isinstance(error, HarnessError) or error.role is not None:
                    continue
                found.unprepared.append(error.problem)
            else:
                found.checked += bool(holds)
                if holds and all(holds):
                    found.held.append(number)
            found.left -= 1

    async with anyio.create_task_group() as group:
        for _ in range(_WORLDS):
            group.start_soon(examine_next)
    found.held.sort()
    found.paid = [number for number in found.held if pays_for_checks_alone(environment, tasks[number])]
    return found


def place(task: ListedTask | Task) -> str:
    """Where a task is in its file; its name where it is in none."""
    return (task.where if isinstance(task, FileTask | Task) else "") or f"task {task.task!r}"


def _tools_apart(environment: Environment, gateway: Gateway) -> set[str]:
    """Exposed names of the tools whose calls in one trajectory change nothing for another."""
    return {
        tool.exposed_name
        for server, tools in gateway.catalogue.items()
        for tool in tools
        if tool.read_only
        or environment.servers[server].scope is not Scope.SHARED
        or any(each.role is Role.RESET for each in tools)
    }


def pays_for_checks_alone(environment: Environment, task: ListedTask | Task) -> bool:
    """Whether a trajectory earns what the task gives where all of its checks hold.

    Where a server scores, checks may be conditions beside what the task is about; and so where an answer counts.
    """
    config = environment.reward
    checks, answers, solved = map(config.weight, (Component.CHECKS, Component.EXACT_MATCH, Component.SOLVED))
    return config.server is None and max(checks, solved) > 0 and not (task.answer and max(answers, solved) > 0)
