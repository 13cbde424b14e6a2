"""Policies for the airline of τ³-bench: its reference actions, these perturbed, and those that do not do the task.

`--engine tau3_players:NAME` plays the latter, and `python tests/support/tau3_players.py DIR...` says what they earned.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from blind_engine import Blind

from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.mcp_servers.tau3_airline.package import data, environment
from mcp_rollout.mcp_servers.tau3_airline.users import scenario
from mcp_rollout.rollout.contract import calls
from mcp_rollout.rollout.contract.calls import Call, Score, Turn
from mcp_rollout.rollout.contract.play import random_script
from mcp_rollout.rollout.engines.engine import EngineOptions
from mcp_rollout.rollout.environment.config import load_environment
from mcp_rollout.rollout.environment.harness import ListedTask
from mcp_rollout.rollout.environment.startup import opened_environment
from mcp_rollout.rollout.evaluation.estimates import estimate
from mcp_rollout.rollout.trace.store import read_traces
from mcp_rollout.rollout.types import Message

ENVIRONMENTS = Path(__file__).parents[2] / "configs" / "environments"
ORACLE = Path(__file__).with_name("tau3_oracle.py")
WRITES = re.compile("book|cancel|send|update")


@dataclass
class Reference:
    """A task's reference, from the wheel's data."""

    task: str
    calls: list[Call]
    said: list[str]

    @property
    def writes(self) -> bool:
        return any(WRITES.match(call.name) for call in self.calls)


def references() -> dict[str, Reference]:
    raw: list[dict[str, Any]] = json.loads((data() / "tasks.json").read_text())
    return {
        task["id"]: Reference(
            task["id"],
            [Call(name=each["name"], arguments=each["arguments"]) for each in task["evaluation_criteria"]["actions"]],
            list(task["evaluation_criteria"]["communicate_info"]),
        )
        for task in raw
    }


@dataclass
class Table:
    """One lease of the environment, reset for each trajectory."""

    session: Session

    async def play(self, task: str, made: Sequence[Call], said: Sequence[str]) -> Score:
        await self.session.reset(task)
        messages: list[Message] = [{"role": "user", "content": "Hello."}]
        for call in made:
            function = {"type": "function", "function": call.model_dump()}
            messages.append({"role": "assistant", "content": "", "tool_calls": [function]})
            result = await self.session.call(call.name, call.arguments)
            messages.append({"role": "tool", "content": result.text})
        messages += [{"role": "assistant", "content": text} for text in said]
        return await calls.score(self.session, "airline", messages)

    def random_calls(self, task: str, seed: int) -> list[Call]:
        script: list[Turn] = random_script(self.session, ListedTask(task=task, seed=seed))
        return [call for turn in script for call in turn.calls or ()]


@asynccontextmanager
async def seated() -> AsyncIterator[Table]:
    async with opened_environment(load_environment("tau3_airline_scripted", ENVIRONMENTS)) as gateway:
        async with gateway.lease(trajectory="airline", task=None, seed=0) as session:
            yield Table(session)


def perturbed(references: dict[str, Reference], rng: Random) -> tuple[Reference, list[str]]:
    """A reference with up to three changes: calls dropped, doubled, swapped, arguments changed, words left out."""
    origin = references[rng.choice([name for name, each in references.items() if each.calls])]
    made, said, done = [call.model_copy(deep=True) for call in origin.calls], list(origin.said), list[str]()
    known = [call for each in references.values() for call in each.calls]
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        if not made:
            break
        at, there = rng.randrange(len(made)), rng.randrange(len(made))
        change = rng.choice(["drop", "double", "swap", "argument", "argument", "argument", "words"])
        match change:
            case "drop":
                del made[at]
            case "double":
                made.insert(there, made[at])
            case "swap":
                made[at], made[there] = made[there], made[at]
            case "words":
                said = [f"{int(info):,}" for info in said] if rng.random() < 0.5 else said[1:]
            case _:
                made[at] = _changed(made[at], known, rng)
        done.append(change)
    return Reference(origin.task, made, said), done


def _changed(call: Call, known: Sequence[Call], rng: Random) -> Call:
    """The call with another value of the same type in one place."""
    key = rng.choice(list(call.arguments))
    old = call.arguments[key]
    if isinstance(old, int):
        new: Any = old + rng.choice([-1, 1])
    elif isinstance(old, list):
        new = rng.choice([old[1:], old[::-1], [*old, *old[:1]]])
    else:
        new = rng.choice([each.arguments[key] for each in known if key in each.arguments] + [old + "x"])
    return Call(name=call.name, arguments={**call.arguments, key: new})


def verdicts(asked: Sequence[Reference]) -> list[dict[str, bool]]:
    """What the wheel's own tools say, in another process."""
    lines = [
        json.dumps({"task": each.task, "calls": [call.model_dump() for call in each.calls], "said": each.said})
        for each in asked
    ]
    told = subprocess.run(
        [environment() / "bin" / "python", "-I", ORACLE],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in told.stdout.splitlines()]


RECITED = " ".join(map(str, range(30_000)))
"""Every number that a task may want to be told."""


def blind(opening: str) -> dict[str, tuple[list[Call], list[str]]]:
    """By name, what an agent can do that reads the customer's first message only: calls, and words."""
    ids = list(dict.fromkeys(re.findall(r"\b(?=[A-Z]*\d)(?=\d*[A-Z])[A-Z\d]{6}\b", opening)))
    cancel = [Call(name="cancel_reservation", arguments={"reservation_id": found}) for found in ids]
    return {
        "nothing": ([], []),
        "recites": ([], [RECITED]),
        "cancels one": (cancel[:1], []),
        "cancels all": (cancel, []),
    }


def recites(_: EngineOptions) -> Blind:
    return _playing("recites")


def cancels_one(_: EngineOptions) -> Blind:
    return _playing("cancels one")


def cancels_all(_: EngineOptions) -> Blind:
    return _playing("cancels all")


def fitted(_: EngineOptions) -> Blind:
    """What `chosen` says of the rewards in the traces of the other blind policies, beneath the directory TAU3_BLIND."""
    rewards: dict[str, dict[str, float]] = {}
    for directory in sorted(Path(os.environ["TAU3_BLIND"]).iterdir()):
        for trace in read_traces(directory):
            name = "nothing" if trace.origin.engine == "none" else str(trace.origin.engine)
            if name in blind("") and trace.reward is not None:
                rewards.setdefault(trace.task.task, {})[name] = trace.reward.score
    return Blind("fitted", lambda task: blind(_opening(task))[chosen(task, rewards)])


def _playing(name: str) -> Blind:
    return Blind(name, lambda task: blind(_opening(task))[name])


def chosen(task: str, rewards: Mapping[str, Mapping[str, float]]) -> str:
    """The name of the blind policy that was best on the five most similar openings of other customers."""
    others = [other for other in rewards if _customer(other) != _customer(task)]
    near = sorted(others, key=lambda other: -_likeness(task, other))[:5]
    return max(blind(""), key=lambda policy: sum(rewards[other][policy] for other in near))


def _likeness(task: str, other: str) -> float:
    one, two = ({*re.findall(r"[a-z]+", _opening(name).lower())} for name in (task, other))
    return len(one & two) / len(one | two)


def _customer(task: str) -> str:
    return re.findall(r"\b[a-z]+_[a-z]+_\d{4}\b", _opening(task))[0]


@cache
def _opening(task: str) -> str:
    return scenario(task, 0).opening


def main(directories: Sequence[str]) -> None:
    """Print what the traces in each directory earn: on all tasks, on those that write, and on the others."""
    known = references()
    for directory in directories:
        played: dict[str, list[float]] = {}
        for trace in read_traces(directory):
            assert trace.reward is not None, trace.failure
            played.setdefault(trace.task.task, []).append(trace.reward.score)
        cells: list[str] = []
        for words, tasks in {
            "all": known,
            "write": [task for task in known if known[task].writes],
            "do not": [task for task in known if not known[task].writes],
        }.items():
            found = estimate([fmean(played[task]) for task in tasks], sum(len(played[task]) for task in tasks))
            assert found is not None
            cells.append(f"{words} {len(tasks)}: {found.value:.3f} [{found.low:.2f}, {found.high:.2f}]")
        sys.stdout.write(f"{directory}, {sum(map(len, played.values()))} trajectories: {'; '.join(cells)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
