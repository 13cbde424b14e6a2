"""The clause about the environment's own reward functions, which read the trace of a whole trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.contract.clauses import ClauseFailed, ClauseUntested
from mcp_rollout.rollout.contract.play import CheckSetup
from mcp_rollout.rollout.engines.rehearsal import rehearse, script_for
from mcp_rollout.rollout.engines.scripted import ScriptedPolicy
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.rows import system_message, task_of
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.errors import RewardError
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.types import Policy


async def functions(setup: CheckSetup) -> str:
    """Play each task with a script and with empty turns, and have the functions read the traces."""
    named = setup.environment.reward.functions
    if not named:
        raise ClauseUntested("the environment names no reward.functions")
    # Neither a program nor a judge is asked, which both may cost money: functions read any agent's trace.
    reward = setup.environment.reward.model_copy(update={"rubric": None})
    environment = setup.environment.model_copy(update={"agent": None, "reward": reward})
    seen: dict[str, list[float]] = {name: [] for name in named}
    try:
        system = await system_message(setup.environment, setup.gateway)
        tasks = [task_of(setup.environment, setup.gateway, item, system) for item in setup.items]
    except ConfigError as problem:
        raise ClauseUntested(f"no row can be made of a task: {problem}") from problem
    for task in tasks:
        for silent in (False, True):
            trace = await _played(setup, environment, task, silent=silent)
            if (failure := trace.failure) is not None:
                what = f"task {task.task!r}, {'empty turns' if silent else 'with a script'}: {failure.message}"
                # What breaks elsewhere is examined by other clauses.
                raise ClauseFailed(what) if failure.kind == RewardError.code else ClauseUntested(what)
            if trace.reward is None:
                raise ClauseUntested(f"task {task.task!r}: the trajectory has no turn ({trace.stop_reason})")
            for name, values in seen.items():
                values.append(trace.reward.parts[name])
    return ", ".join(f"{name} from {min(values):g} to {max(values):g}" for name, values in seen.items())


async def _played(setup: CheckSetup, environment: Environment, task: Task, *, silent: bool) -> Trace:
    async def policy_for(session: Session) -> Policy:
        script: Sequence[str] = () if silent else await script_for(environment, session, task)
        return ScriptedPolicy(script, ByteTokens().encode, stop=IM_END)

    trace = Trace.begin(uuid4().hex, task, Origin(engine="scripted"))
    await rehearse(trace, environment=environment, gateway=setup.gateway, policy_for=policy_for)
    return trace
