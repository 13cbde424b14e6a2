"""An engine for policies that play a script, whatever the world answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.scripted import ScriptedPolicy, WithoutModel
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.types import Call, Policy


class Blind(WithoutModel):
    """Makes a task's calls, one a turn, says what is to be said, and then nothing."""

    def __init__(self, name: str, script: Callable[[str], tuple[Sequence[Any], Sequence[str]]]) -> None:
        super().__init__(name)
        self._script = script

    async def policy(self, session: Session, environment: Environment, task: Task, origin: Origin) -> Policy:
        made, said = self._script(task.task)
        calls = [Call(name=call.name, arguments=call.arguments) for call in made]
        texts = [*(hermes.write(calls=[call]) for call in calls), *said]
        return ScriptedPolicy(texts, ByteTokens().encode, stop=IM_END)
