"""Clauses about the expert's trajectory when it is changed, and when the tools are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gateway.config.tool_selection import ToolOverride
from gateway.types import ToolDefinition
from rollout.contract.calls import Call, Turn
from rollout.contract.clauses import ClauseFailed, ClauseUntested
from rollout.contract.play import CheckSetup, Play
from rollout.engines.random_arguments import random_arguments
from rollout.environment.config import Environment
from rollout.environment.harness import ListedTask
from rollout.environment.reward_config import Component
from rollout.environment.startup import opened_environment
from rollout.trace.outcome import ROUNDING

_CHANGES = {
    "dropped": "without one of its calls",
    "doubled": "with one of its calls twice",
    "swapped": "with two of its calls in each other's place",
    "other arguments": "with random arguments in one of its calls",
    "repeated": "with all calls a second time before the last message",
    "late": "with all calls again after the end",
    "mute": "without a word",
}
_NO_EXPERT = "no expert tool on a tasks.server"


async def false_passes(setup: CheckSetup) -> str:
    """No change to the expert's trajectory raises its reward."""
    made, kept = Counter[str](), Counter[str]()
    for item in setup.items:
        async with setup.lease(item) as session:
            script = await setup.expert(session, item)
            schemas = {tool.exposed_name: tool.input_schema for tool in session.tools.values()}
        if script is None:
            raise ClauseUntested(_NO_EXPERT)
        good = await _reward(setup, item, script)
        for change, words in _CHANGES.items():
            changed = mutated(script, change, schemas, random.Random(f"{item.task}/{item.seed}/{change}"))
            if changed == script and change != "late":
                continue
            earned = await _reward(setup, item, changed, late=change == "late")
            if earned > good + ROUNDING:
                problem = f"the expert's trajectory earns {good:g}, and {words} {earned:g}"
                raise ClauseFailed(f"task {item.task!r}: {problem}")
            made[change] += 1
            kept[change] += earned > good - ROUNDING
    if not made:
        raise ClauseUntested("the expert calls no tool and says nothing")
    counts = [f"{name} {kept[name]} of {made[name]}" for name in _CHANGES if made[name]]
    return f"still the whole reward: {', '.join(counts)}"


async def _reward(setup: CheckSetup, item: ListedTask, script: Sequence[Turn], *, late: bool = False) -> float:
    """The reward of a script as the environment weighs it, as far as its servers give it."""
    async with setup.lease(item) as session:
        play = Play(setup.environment, session, item, script)
        await play.begin()
        await play.finish()
        for call in _calls(script) if late else ():
            await play.call(call)
        found, config = await play.score(), setup.environment.reward
    reward = config.weight(Component.TURNS) * play.rewards
    if found is not None:
        reward += config.weight(Component.SCORE) * found.score
        reward += sum(config.weight(name) * value for name, value in found.parts.items())
    return reward


def mutated(
    script: Sequence[Turn], change: str, schemas: Mapping[str, Mapping[str, Any]], rng: random.Random
) -> Sequence[Turn]:
    """A copy of the script with one change; the script itself where it has nothing to change."""
    places = [(number, at) for number, turn in enumerate(script) for at in range(len(turn.calls or ()))]
    turns = [turn.model_copy(deep=True) for turn in script]
    if change == "mute":
        return [turn.model_copy(update={"content": None}) if turn.content else turn for turn in turns]
    if not places or change == "late":
        return script
    if change == "repeated":
        return [*turns[:-1], *(turn for turn in script if turn.calls), *turns[-1:]]
    number, at = rng.choice(places)
    calls = cast("list[Call]", turns[number].calls)
    match change:
        case "dropped":
            del calls[at]
            return [turn for turn in turns if turn.calls or turn.content]
        case "doubled":
            calls.insert(at, calls[at])
        case "swapped":
            other, there = rng.choice(places)
            others = cast("list[Call]", turns[other].calls)
            calls[at], others[there] = others[there], calls[at]
        case _:
            call = calls[at]
            drawn = random_arguments(schemas.get(call.name, {}), rng)
            calls[at] = call.model_copy(update={"arguments": call.arguments | drawn})
    return turns


def _calls(script: Sequence[Turn]) -> list[Call]:
    return [call for turn in script for call in turn.calls or ()]


@dataclass(frozen=True, slots=True)
class _Change:
    """What a mutation does to one tool."""

    tool: ToolDefinition
    name: str
    fixed: dict[str, Any]
    """Optional arguments that are no longer in the schema, with the defaults that are sent."""

    def applied(self, call: Call) -> Call | None:
        """The call as the changed tool takes it; None if it needs an argument that is gone."""
        if any(call.arguments.get(key, value) != value for key, value in self.fixed.items()):
            return None
        return Call(name=self.name, arguments={k: v for k, v in call.arguments.items() if k not in self.fixed})


async def mutations(setup: CheckSetup) -> str:
    """The expert earns as much with other tool names, descriptions and schemas."""
    if not setup.mutations:
        raise ClauseUntested("not asked for")
    item, survived = setup.items[0], 0
    async with setup.lease(item) as session:
        script = await setup.expert(session, item)
    if script is None:
        raise ClauseUntested(_NO_EXPERT)
    good, failed = await _reward(setup, item, script), list[str]()
    for seed in range(setup.mutations):
        changes = list(_changes(setup, script, random.Random(seed)))
        by_name = {change.tool.exposed_name: change for change in changes}
        made = [by_name[call.name].applied(call) if call.name in by_name else call for call in _calls(script)]
        if None in made:
            failed.append(f"{seed}: a call of the expert needs an argument that is gone")
            continue
        calls = iter(cast("list[Call]", made))
        renamed = [
            turn.model_copy(update={"calls": [next(calls) for _ in turn.calls or ()] or None}) for turn in script
        ]
        changed = _environment(setup.environment, changes)
        async with opened_environment(changed) as gateway:
            earned = await _reward(setup.over(changed, gateway), item, renamed)
        if abs(earned - good) <= ROUNDING:
            survived += 1
            continue
        names = ", ".join(f"{change.tool.exposed_name} as {change.name}" for change in changes)
        failed.append(f"{seed}: {earned:g} of {good:g} with {names}")
    said = f"the expert survives {survived} of {setup.mutations}"
    if failed:
        raise ClauseFailed("; ".join([said, *failed[:3]]))
    return said


def _changes(setup: CheckSetup, script: Sequence[Turn], rng: random.Random) -> Iterator[_Change]:
    """Changes of about half of the tools, and of one that the expert calls."""
    tools = [tool for listed in setup.gateway.catalogue.values() for tool in listed if tool.role is None]
    called = sorted({call.name for call in _calls(script)})
    chosen = rng.choice(called) if called else None
    for number, tool in enumerate(sorted(tools, key=lambda tool: tool.exposed_name)):
        if rng.random() < 0.5 and tool.exposed_name != chosen:
            continue
        properties = cast("Mapping[str, Mapping[str, Any]]", tool.input_schema.get("properties", {}))
        required = cast("Sequence[str]", tool.input_schema.get("required", ()))
        optional = [key for key, schema in properties.items() if key not in required and "default" in schema]
        gone = rng.sample(optional, rng.randint(0, len(optional)))
        fixed = {key: properties[key]["default"] for key in gone}
        yield _Change(tool, f"t{number}_{rng.randrange(10**6)}", fixed)


def _environment(environment: Environment, changes: Sequence[_Change]) -> Environment:
    servers = dict(environment.servers)
    for change in changes:
        config = servers[change.tool.server]
        words = " ".join(reversed((change.tool.description or "").split()))
        override = ToolOverride(name=change.name, description=words, fixed={**change.tool.fixed, **change.fixed})
        selection = config.tools.model_copy(update={"change": {**config.tools.change, change.tool.name: override}})
        servers[change.tool.server] = config.model_copy(update={"tools": selection})
    return environment.model_copy(update={"servers": servers})
