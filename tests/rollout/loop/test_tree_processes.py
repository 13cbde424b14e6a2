"""A tree over processes: the server of one branch is killed; its siblings finish, and nothing is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import psutil
import pytest
from trees import TOKENS

from lab.worlds import WORLDS
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.scripted import ScriptedPolicy, expert_script
from mcp_rollout.rollout.environment.config import load_environment
from mcp_rollout.rollout.environment.rows import environment_tasks
from mcp_rollout.rollout.environment.sections import StrategyConfig
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.loop.group import Group
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.tokens.chatml import IM_END
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.types import Completion, Policy

pytestmark = pytest.mark.anyio
LEAVES, KILLED = 4, 2


class Killing:
    """Kills the server of its own trajectory at the first turn that its policy is asked for."""

    def __init__(self, session: Session, policy: Policy) -> None:
        self._session, self._policy = session, policy

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        pid = self._session.connection("depot").pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return await self._policy.generate(ids, max_tokens=max_tokens, turn=turn)


@pytest.mark.parametrize("restores", [True, False])
async def test_the_siblings_of_a_branch_whose_server_is_killed_finish(tmp_path: Path, restores: bool) -> None:
    made = load_environment(WORLDS / "depot.yaml")
    entry = made.servers["depot"].model_copy(update={"scope": "process", "max_processes": 2})
    strategy = {"use": "tree", "tree": {"roots": 1, "restore": restores, "branch_at": "first_turns"}}
    environment = made.model_copy(
        update={"servers": {"depot": entry}, "strategy": StrategyConfig.model_validate(strategy)}
    )
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    group, traces = Group(LEAVES), dict[int, Trace]()
    async with Gateway(environment) as gateway:
        (task,) = await environment_tasks(environment, gateway, "test", 1)

        async def play(sample: int) -> None:
            async def policy_for(session: Session) -> Policy:
                policy = ScriptedPolicy(await expert_script(session, task, "depot"), TOKENS.encode, stop=IM_END)
                return Killing(session, policy) if sample == KILLED else policy

            trace = traces[sample] = Trace.begin(f"leaf-{sample}", task, Origin(sample=sample))
            await roll_out(
                trace,
                environment=environment,
                gateway=gateway,
                policy_for=policy_for,
                tokens=TOKENS,
                limits=Limits.of(environment.limits, response_tokens=100_000),
                store=TraceStore(tmp_path),
                group=group,
            )

        async with anyio.create_task_group() as tasks:
            for sample in range(LEAVES):
                tasks.start_soon(play, sample)
    killed = traces.pop(KILLED)
    assert killed.origin.parent == "leaf-0" and killed.failure is not None
    for trace in traces.values():
        assert trace.stop_reason is StopReason.USER_DONE, trace.failure
        assert trace.reward is not None and trace.reward.score == pytest.approx(1.0)
        assert (trace.origin.parent is None) == (trace.origin.sample == 0)
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
