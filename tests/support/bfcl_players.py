"""Policies for the leaderboard's tasks: the ground truth, perturbed in every way that the checker may notice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import CallFault
from mcp_rollout.mcp_servers.bfcl.documents import Function, load_functions
from mcp_rollout.mcp_servers.bfcl.server import play
from mcp_rollout.mcp_servers.bfcl.tasks import find_task
from mcp_rollout.rollout.engines.scripted import ScriptedPolicy
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.types import Call, Policy

FUNCTIONS: dict[str, Function] = load_functions()
Turns = list[list[Call]]
"""The calls of each user turn."""


def ground_truth(task: str) -> Turns:
    turns: Turns = [[]]
    for turn in play(find_task(task), FUNCTIONS):
        if turn.calls is None:
            turns.append([])
        else:
            turns[-1] = [Call(name=call.name, arguments=dict(call.arguments)) for call in turn.calls]
    return turns[:-1]


@dataclass
class Perturbation:
    """Changes to the ground truth of one task, by chance."""

    rng: Random
    done: list[str] = field(default_factory=list)

    def apply(self, turns: Turns, times: int) -> None:
        for _ in range(times):
            change = self.rng.choice(
                [self.drop, self.double, self.swap, self.move, self.value, self.type, self.unknown, self.foreign]
            )
            if any(turns):
                self.done.append(change.__name__)
                change(turns)

    def place(self, turns: Turns) -> tuple[list[Call], int]:
        turn = self.rng.choice([turn for turn in turns if turn])
        return turn, self.rng.randrange(len(turn))

    def drop(self, turns: Turns) -> None:
        turn, at = self.place(turns)
        del turn[at]

    def double(self, turns: Turns) -> None:
        turn, at = self.place(turns)
        turn.insert(at, turn[at])

    def swap(self, turns: Turns) -> None:
        (first, at), (second, there) = self.place(turns), self.place(turns)
        first[at], second[there] = second[there], first[at]

    def move(self, turns: Turns) -> None:
        turn, at = self.place(turns)
        target = self.rng.choice(turns)
        call = turn.pop(at)
        target.insert(self.rng.randint(0, len(target)), call)

    def value(self, turns: Turns) -> None:
        values = ["", "zz", " (x)", "sort (1)", 'it\'s "quoted"', "é\n", 0, -1, 3.5, 10**12, True, False]
        self._argument(
            turns, lambda old: self.rng.choice([value for value in values if type(value) is type(old)] or [old])
        )

    def type(self, turns: Turns) -> None:
        def other(old: Any) -> Any:
            changed = [str(old), [old], {"value": old}, None, True, 7, 2.5, [], {}]
            return self.rng.choice([value for value in changed if type(value) is not type(old)])

        self._argument(turns, other)

    def unknown(self, turns: Turns) -> None:
        turn, at = self.place(turns)
        name = self.rng.choice(["teleport", "print", turn[at].name + "s", "_load_scenario", "exit"])
        turn[at] = Call(name=name, arguments=turn[at].arguments)

    def foreign(self, turns: Turns) -> None:
        """A call of another function, of this task or of any, with the same arguments or with a name that none has."""
        turn, at = self.place(turns)
        arguments = turn[at].arguments
        if self.rng.random() < 0.5:
            turn[at] = Call(name=turn[at].name, arguments={**arguments, self.rng.choice(["extra", "from", "a b"]): 1})
        else:
            turn.insert(at, Call(name=self.rng.choice(list(FUNCTIONS)), arguments=arguments))

    def _argument(self, turns: Turns, change: Callable[[Any], Any]) -> None:
        turn, at = self.place(turns)
        call = turn[at]
        if call.arguments:
            key = self.rng.choice(list(call.arguments))
            turn[at] = Call(name=call.name, arguments={**call.arguments, key: change(call.arguments[key])})


def perturbed(task: str, rng: Random) -> tuple[Turns, list[str]]:
    turns, perturbation = ground_truth(task), Perturbation(rng)
    perturbation.apply(turns, rng.choice([0, 1, 1, 1, 2, 3]))
    return turns, perturbation.done


def texts(turns: Turns, rng: Random | None = None) -> list[str]:
    """The completions that play the turns: by default all calls of a user turn in one, else in steps of random size."""
    written: list[str] = []
    for calls in turns:
        left = list(calls)
        while left:
            size = len(left) if rng is None else rng.randint(1, len(left))
            written.append(hermes.write(calls=left[:size]))
            del left[:size]
        written.append("Done.")
    return written


def scripted(completions: Sequence[str]) -> Callable[[Session], Any]:
    async def policy_for(_: Session) -> Policy:
        return ScriptedPolicy(completions, ByteTokens().encode, stop=IM_END)

    return policy_for


def decoded(trace: Trace) -> list[list[list[str]]]:
    """What the leaderboard would decode of a trajectory, by user turn and step.

    A call that was refused because the task does not have the function, or not yet, gets a name that no class has: the
    package would execute it.
    """
    turns: list[list[list[str]]] = [[]]
    for turn in trace.turns:
        calls = [(event.name, event.arguments, event.fault is CallFault.UNKNOWN_TOOL) for event in turn.tools]
        if calls:
            turns[-1].append([written(f"refused_{name}" if refused else name, given) for name, given, refused in calls])
        if turn.user is not None and not turn.user.done:
            turns.append([])
    return turns


def written(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({','.join([f'{key}={value!r}' for key, value in arguments.items()])})"


def verdicts(asked: Iterable[tuple[str, list[list[list[str]]]]]) -> list[dict[str, Any]]:
    """The package's verdicts on tasks and their decoded calls."""
    lines = "".join(json.dumps({"id": task, "decoded": calls}) + "\n" for task, calls in asked)
    oracle = Path(__file__).with_name("bfcl_oracle.py")
    done = subprocess.run(
        [sys.executable, oracle], input=lines, capture_output=True, text=True, check=True, timeout=900
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
