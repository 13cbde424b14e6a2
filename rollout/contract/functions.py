"""The clause about the environment's own reward functions, which read the trace of a whole trajectory."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from gateway.errors import ConfigError
from gateway.leases.session import Session
from rollout.contract.clauses import ClauseFailed, ClauseUntested
from rollout.contract.play import CheckSetup, random_script
from rollout.engines.scripted import ScriptedPolicy
from rollout.environment.config import Environment
from rollout.environment.harness import ListedTask
from rollout.environment.rows import system_message, task_of
from rollout.environment.sections import StrategyConfig
from rollout.environment.task import Origin, Task
from rollout.errors import RewardError
from rollout.formats import hermes
from rollout.loop.limits import Limits
from rollout.loop.trajectory import roll_out
from rollout.tokens.chatml import IM_END, ByteTokens
from rollout.trace.record import Trace
from rollout.trace.store import TraceStore
from rollout.types import Call, Policy

_RESPONSE = 1 << 20
"""Tokens, which are bytes here: more than a script has."""


async def functions(setup: CheckSetup) -> str:
    """Play each task as `run` does, with a script and with empty turns, and have the functions read the traces."""
    named = setup.environment.reward.functions
    if not named:
        raise ClauseUntested("the environment names no reward.functions")
    # Neither a program nor a judge is asked, which both may cost money: functions read any agent's trace.
    reward = setup.environment.reward.model_copy(update={"rubric": None})
    environment = setup.environment.model_copy(update={"agent": None, "strategy": StrategyConfig(), "reward": reward})
    seen: dict[str, list[float]] = {name: [] for name in named}
    try:
        system = await system_message(setup.environment, setup.gateway)
        tasks = [(item, task_of(setup.environment, setup.gateway, item, system)) for item in setup.items]
    except ConfigError as problem:
        raise ClauseUntested(f"no row can be made of a task: {problem}") from problem
    for item, task in tasks:
        for silent in (False, True):
            trace = await _played(setup, environment, item, task, silent=silent)
            if (failure := trace.failure) is not None:
                what = f"task {item.task!r}, {'empty turns' if silent else 'with a script'}: {failure.message}"
                # What breaks elsewhere is examined by other clauses.
                raise ClauseFailed(what) if failure.kind == RewardError.code else ClauseUntested(what)
            if trace.reward is None:
                raise ClauseUntested(f"task {item.task!r}: the trajectory has no turn ({trace.stop_reason})")
            for name, values in seen.items():
                values.append(trace.reward.parts[name])
    return ", ".join(f"{name} from {min(values):g} to {max(values):g}" for name, values in seen.items())


async def _played(setup: CheckSetup, environment: Environment, item: ListedTask, task: Task, *, silent: bool) -> Trace:
    async def policy_for(session: Session) -> Policy:
        script = [] if silent else await setup.expert(session, item) or random_script(session, item)
        texts = [
            hermes.write(
                thinking=turn.thinking or "",
                content=turn.content or "",
                calls=[Call(name=call.name, arguments=call.arguments) for call in turn.calls or ()],
            )
            for turn in script
        ]
        return ScriptedPolicy(texts, ByteTokens().encode, stop=IM_END)

    with TemporaryDirectory() as directory:
        return await roll_out(
            Trace.begin(uuid4().hex, task, Origin(engine="scripted")),
            environment=environment,
            gateway=setup.gateway,
            policy_for=policy_for,
            tokens=ByteTokens(),
            limits=Limits.of(
                environment.limits.model_copy(update={"tokens_per_turn": None}), response_tokens=_RESPONSE
            ),
            store=TraceStore(Path(directory)),
        )
