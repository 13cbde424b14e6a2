"""Play one empty trajectory before Ray starts: reset, user, score and release are all called once."""

from __future__ import annotations

from tempfile import TemporaryDirectory

from gateway.gateway import Gateway
from gateway.leases.session import Session
from rollout.engines.scripted import ScriptedPolicy
from rollout.environment.config import Environment
from rollout.environment.row_validation import Row
from rollout.environment.task import Origin
from rollout.loop.limits import Limits
from rollout.loop.trajectory import roll_out
from rollout.tokens.chatml import IM_END, ByteTokens
from rollout.trace.record import Trace
from rollout.trace.store import TraceStore
from rollout.types import Policy

MOST_BYTES = 2**24


async def check_world(environment: Environment, gateway: Gateway, row: Row) -> None:
    """Play a row with one empty turn, and score it.

    Raises:
        ConfigError: the trajectory failed: the servers cannot be reset to the task, a `score` raises, a part of it is
            missing, a reward function is broken, ...
    """
    tokens = ByteTokens()
    trace = Trace.begin("preflight", row.task, Origin(engine="none"))
    # One turn is enough, and a user that a model plays costs one message.
    own = environment.limits.model_copy(update={"assistant_turns": 1, "tokens_per_turn": None})

    async def does_nothing(session: Session) -> Policy:
        return ScriptedPolicy([], tokens.encode, stop=IM_END)

    with TemporaryDirectory(prefix="mcp-rollout-preflight-") as directory:
        store = TraceStore(directory)
        await roll_out(
            trace,
            environment=environment,
            gateway=gateway,
            policy_for=does_nothing,
            tokens=tokens,
            limits=Limits.of(own, response_tokens=MOST_BYTES),
            store=store,
        )
        store.close()
    if trace.failure is not None:
        problem = f"a trajectory of {environment.name} that does nothing fails: {trace.failure.message}"
        raise row.problem(problem, key="extra_info.mcp", remedy=f"mcp-rollout check-env {environment.name}")
