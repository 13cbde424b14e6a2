"""The world of a trajectory: the model's API objects, those of the ground truth, and a check at each user turn's end.

The checks are the package's `state_checker` and `response_checker`, applied in the order of its `multi_turn_checker`.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from mcp_rollout.mcp_servers.bfcl import package
from mcp_rollout.mcp_servers.bfcl.calls import FAILED, Instances, written
from mcp_rollout.mcp_servers.bfcl.tasks import Task
from mcp_rollout.mcp_servers.kit import Message, Score

_MODEL, _TRUTH = "model_eval", "model_ground_truth_eval"
"""The package's names for the two sides of a model called `model`. They get into the arguments of a call whose text
contains the name of a method and a parenthesis."""


@dataclass(frozen=True, slots=True)
class Check:
    """What the end of a user turn showed; turns without ground truth have none."""

    turn: int
    agrees: bool
    """Whether the state equals the ground truth's and its results are among those so far."""
    has_calls: bool
    """Whether the policy executed a call in the turn."""


@dataclass(kw_only=True, slots=True)
class World:
    """The user turn that is being played, counted from 0, and everything before it."""

    task: Task
    model: Instances
    truth: Instances
    turn: int = 0
    over: bool = False
    results: list[str] = field(default_factory=list[str])
    """The results of all calls so far; those of earlier turns count, too."""
    calls_in_turn: int = 0
    checks: list[Check] = field(default_factory=list[Check])

    @classmethod
    def begin(cls, task: Task) -> World:
        """A new world, which shares nothing with another one."""
        long_context = task.category == "long_context"
        model, truth = (
            {name: package.new_instance(name, task.initial_config, long_context=long_context) for name in task.classes}
            for _ in range(2)
        )
        if long_context:
            # Both sides refer to the same objects of the package's modules, as when the package checks. One copy of
            # both keeps that, and separates them from other worlds.
            model, truth = copy.deepcopy((model, truth))
        return cls(
            task=task, model=Instances(model, f"{_MODEL}_{task.name}"), truth=Instances(truth, f"{_TRUTH}_{task.name}")
        )

    def call(self, function: str, arguments: dict[str, object]) -> str:
        """Execute a call of the policy and return the package's text of its result.

        A function that the task does not have, or not yet, gets the package's answer to an unknown name.
        """
        if self.task.may_call(function, self.turn):
            result = self.model.execute(written(function, arguments))
        else:
            result = f"{FAILED}name {function!r} is not defined"
        self.results.append(result)
        self.calls_in_turn += 1
        return result

    def end_turn(self) -> None:
        """Check the user turn against the ground truth and go on to the next one."""
        self._check(self.truth)
        self.turn, self.calls_in_turn = self.turn + 1, 0
        self.over = self.turn == len(self.task.questions)

    def score(self, messages: Sequence[Message]) -> Score:
        """All or nothing as published, and the share of the user turns with a ground truth that agree, as `user_turns`.

        A trajectory that ended before its last user turn fails, as one that the leaderboard forces to quit. In the last
        one, what was done until then is checked.
        """
        checks = list(self.checks)
        if not self.over and self.turn == len(self.task.questions) - 1:
            checks += self._ahead()
        refused = turns_with_unknown_calls(messages, self.task)
        agreed = sum(check.agrees and (check.has_calls or check.turn in refused) for check in checks)
        expected = sum(bool(calls) for calls in self.task.ground_truth)
        reached = self.over or self.turn == len(self.task.questions) - 1
        return Score(score=float(reached and agreed == expected), parts={"user_turns": agreed / expected})

    def _ahead(self) -> list[Check]:
        """The check of an unfinished last turn, on a copy: a score changes nothing."""
        model, truth = copy.deepcopy((self.model, self.truth))
        ahead = World(
            task=self.task,
            model=model,
            truth=truth,
            turn=self.turn,
            results=list(self.results),
            calls_in_turn=self.calls_in_turn,
        )
        ahead.end_turn()
        return ahead.checks

    def _check(self, truth: Instances) -> None:
        expected = [truth.execute(call) for call in self.task.ground_truth[self.turn]]
        if not expected:
            return
        try:
            agrees = package.same_state(self.model.by_class, truth.by_class) and package.has_responses(
                self.results, expected, self.turn
            )
        except Exception:  # the package's boundary: its classes compare themselves, and a failure is a difference
            agrees = False
        self.checks.append(Check(self.turn, agrees, bool(self.calls_in_turn)))


def turns_with_unknown_calls(messages: Sequence[Message], task: Task) -> Collection[int]:
    """The user turns in which the policy called a function that it could not call, so that no server got the call.

    The package executes such a call, with an error as its result, so a turn that has one is not empty.
    """
    found: set[int] = set()
    turn = -1
    for message in messages:
        if message.role == "user":
            turn += 1
        for call in message.tool_calls or ():
            if call.name and not task.may_call(call.name, turn):
                found.add(turn)
    return found
