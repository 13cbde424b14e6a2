"""The clause about the expert's trajectory when it is changed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from mcp_rollout.gateway.catalogue.names import policy_tools
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.contract.calls import Call, Turn
from mcp_rollout.rollout.contract.clauses import ClauseDoubtful, ClauseFailed, ClauseUntested
from mcp_rollout.rollout.contract.play import CheckSetup, Play
from mcp_rollout.rollout.engines.random_arguments import random_arguments
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.harness import ListedTask
from mcp_rollout.rollout.environment.reward_config import Component
from mcp_rollout.rollout.trace.outcome import ROUNDING

_CHANGES = ("dropped", "doubled", "swapped", "other arguments", "repeated", "late", "mute")
"""Of a trajectory: one call left out, made twice, in another's place or with random arguments; all calls a second time
before the last message, or after the end; no word said."""


_NEEDED = ("dropped", "other arguments")
"""Changes that take something of the solution away, if each call of the expert is a part of it."""
_DOUBT = "see that the reward depends on the calls that the task needs; harmless if the ones changed only read"


async def false_passes(setup: CheckSetup) -> str:
    """No change to the expert's trajectory raises its reward."""
    made, kept = Counter[str](), Counter[str]()
    schemas = {tool.exposed_name: tool.input_schema for tool in policy_tools(setup.gateway.catalogue)}
    for item in setup.items:
        script, good = await _expert(setup, item)
        for change in _CHANGES:
            changed = mutated(script, change, schemas, random.Random(f"{item.task}/{item.seed}/{change}"))
            late = _calls(script) if change == "late" else []
            if changed == script and not late:
                continue
            async with setup.lease(item) as session:
                earned = await _reward(setup.environment, session, item, changed, late)
            if earned > good + ROUNDING:
                raise ClauseFailed(f"task {item.task!r}: the expert earns {good:g}, and changed ({change}) {earned:g}")
            made[change] += 1
            kept[change] += earned > good - ROUNDING
    if not made:
        raise ClauseUntested("the expert calls no tool and says nothing")
    counts = [f"{name} {kept[name]} of {made[name]}" for name in _CHANGES if made[name]]
    seen = f"still the whole reward: {', '.join(counts)}"
    if unneeded := [name for name in _NEEDED if made[name] and kept[name] == made[name]]:
        raise ClauseDoubtful(f"{seen}; {' and '.join(unneeded)} changed nothing", remedy=_DOUBT)
    return seen


async def _expert(setup: CheckSetup, item: ListedTask) -> tuple[Sequence[Turn], float]:
    """The expert's turns and what they earn. Raises ClauseUntested if there is no expert."""
    async with setup.lease(item) as session:
        script = await setup.expert(session, item)
        if script is None:
            raise ClauseUntested("no expert tool on a tasks.server")
        return script, await _reward(setup.environment, session, item, script)


async def _reward(
    environment: Environment, session: Session, item: ListedTask, script: Sequence[Turn], late: Sequence[Call] = ()
) -> float:
    """The reward of a script, and of calls after its end, as the environment weighs what its servers give."""
    play = Play(environment, session, item, script)
    await play.begin()
    await play.finish()
    for call in late:
        await play.call(call)
    found, weight = await play.score(), environment.reward.weight
    reward = weight(Component.TURNS) * play.rewards
    if found is not None:
        reward += weight(Component.SCORE) * found.score
        reward += sum(weight(name) * value for name, value in found.parts.items())
    return reward


def mutated(
    script: Sequence[Turn], change: str, schemas: Mapping[str, Mapping[str, Any]], rng: random.Random
) -> Sequence[Turn]:
    """A copy of the script with one change; an equal one where there is nothing to change."""
    turns = [turn.model_copy(deep=True) for turn in script]
    places = [(turn.calls, at) for turn in turns for at in range(len(turn.calls or ()))]
    if change == "mute":
        return [turn.model_copy(update={"content": None}) if turn.content else turn for turn in turns]
    if not places or change == "late":
        return turns
    if change == "repeated":
        return [*turns[:-1], *(turn for turn in script if turn.calls), *turns[-1:]]
    calls, at = cast("tuple[list[Call], int]", rng.choice(places))
    match change:
        case "dropped":
            del calls[at]
            return [turn for turn in turns if turn.calls or turn.content]
        case "doubled":
            calls.insert(at, calls[at])
        case "swapped":
            others, there = cast("tuple[list[Call], int]", rng.choice(places))
            calls[at], others[there] = others[there], calls[at]
        case _:
            call = calls[at]
            drawn = random_arguments(schemas.get(call.name, {}), rng)
            calls[at] = call.model_copy(update={"arguments": call.arguments | drawn})
    return turns


def _calls(script: Sequence[Turn]) -> list[Call]:
    return [call for turn in script for call in turn.calls or ()]
