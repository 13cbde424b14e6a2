"""Play one trajectory without a model and keep nothing of it: what finds faults of an environment before a run."""

from __future__ import annotations

from collections.abc import Sequence
from tempfile import TemporaryDirectory

from gateway.gateway import Gateway
from gateway.leases.session import Session
from gateway.types import Role
from rollout.engines.scripted import RandomPolicy, expert_script
from rollout.environment.config import Environment
from rollout.environment.sections import StrategyConfig
from rollout.environment.task import Task
from rollout.loop.limits import Limits
from rollout.loop.trajectory import PolicyFor, roll_out
from rollout.tokens.chatml import ByteTokens
from rollout.trace.record import Trace
from rollout.trace.store import TraceStore

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
