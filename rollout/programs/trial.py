"""Try a program out: one trajectory of an environment with a scripted policy, and what the program changes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from uuid import uuid4

from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.rehearsal import rehearse, script_for
from mcp_rollout.rollout.engines.scripted import ScriptedPolicy
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.rows import environment_tasks
from mcp_rollout.rollout.environment.startup import opened_environment
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.types import Completion, Policy

_TOOLS = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
_SHOWN = 200


@dataclass
class Trial:
    trace: Trace
    tools: list[str] = field(default_factory=list[str])
    """As the program shows them to the policy."""

    def lines(self) -> Iterator[tuple[str, str]]:
        """What was seen, each with its topic."""
        trace = self.trace
        outcome = str(trace.stop_reason) if trace.failure is None else f"{trace.failure.kind}: {trace.failure.message}"
        yield "outcome", f"{outcome}, {len(trace.turns)} turns, {len(trace.segments)} segments"
        if trace.reward is not None:
            yield "score", f"{trace.reward.score:g}"
        yield "tools", ", ".join(self.tools) or "none"
        prompt = (trace.earlier[0] if trace.earlier else trace).prompt_ids
        yield "prompt", f"{len(prompt):,} bytes"
        if (today := date.today().isoformat()) in ByteTokens().decode(prompt):
            yield "date", f"the prompt has {today}, and another on another day: `frozen` puts a text in its place"
        for number, turn in enumerate(trace.turns, 1):
            seen = [f"{mark.kind}: {mark.detail}" if mark.detail else str(mark.kind) for mark in turn.marks]
            for event in turn.tools:
                if event.shown is not None:
                    seen.append(f"{event.name} gave {event.text[:_SHOWN]!r}, shown as {event.shown[:_SHOWN]!r}")
                if event.coerced:
                    seen.append(f"{event.name} was sent {json.dumps(event.coerced)[:_SHOWN]}")
            yield from ((f"turn {number}", each) for each in seen)


class _Renamed:
    """Plays texts, a turn each, in which tools have the names that the program shows them by."""

    def __init__(self, texts: Sequence[str], exposed: Sequence[str], trial: Trial) -> None:
        self._texts, self._exposed, self._trial = texts, exposed, trial

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        tokens, trial = ByteTokens(), self._trial
        if not trial.tools and (listed := _TOOLS.search(tokens.decode(ids))):
            trial.tools = [json.loads(line)["function"]["name"] for line in listed[1].splitlines()]
        text = self._texts[turn] if turn < len(self._texts) else ""
        for exposed in self._exposed:
            shown = next((name for name in trial.tools if name.endswith(exposed)), exposed)
            text = text.replace(f'"name": {json.dumps(exposed)}', f'"name": {json.dumps(shown)}')
        return await ScriptedPolicy([text], tokens.encode, stop=IM_END).generate(ids, max_tokens=max_tokens, turn=0)


async def try_out(environment: Environment) -> Trial:
    """Play the first test task: the expert's turns where there is an expert, else a random call and an answer.

    Raises:
        ConfigError: the servers do not start, or list no task.
    """
    async with opened_environment(environment) as gateway:
        (task,) = await environment_tasks(environment, gateway, "test", 1)
        trial = Trial(Trace.begin(uuid4().hex, task, Origin(engine="scripted")))

        async def policy_for(session: Session) -> Policy:
            return _Renamed(await script_for(environment, session, task), list(session.tools), trial)

        await rehearse(trial.trace, environment=environment, gateway=gateway, policy_for=policy_for)
    return trial
