"""The leaderboard's tasks: user turns, functions, ground truth, and the split by scenario."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from mcp_rollout.mcp_servers.bfcl import package
from mcp_rollout.mcp_servers.bfcl.calls import read
from mcp_rollout.mcp_servers.bfcl.documents import Function
from mcp_rollout.mcp_servers.bfcl.package import Category
from mcp_rollout.mcp_servers.kit import Split

_EVERY = 4
"""Every fourth group of scenarios is for tests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One task of a category; the four categories have a variant of each scenario."""

    name: str
    """The leaderboard's id."""
    scenario: int
    """The number in the id, from 0."""
    category: Category
    questions: tuple[str, ...]
    """The user's message of each user turn; empty where the turn reveals functions."""
    ground_truth: tuple[tuple[str, ...], ...]
    """The calls of each user turn as Python text."""
    classes: tuple[str, ...]
    functions: tuple[str, ...]
    """Names of the functions that the policy may call in some turn."""
    revealed: Mapping[str, int]
    """By withheld function, the user turn that reveals it."""
    allowed: Mapping[str, int]
    """By withheld function, the user turn from which it may be called. It is the turn that reveals it, or the first one
    whose ground truth calls it: that of `multi_turn_miss_func_49` calls `tail` two turns earlier."""
    initial_config: Mapping[str, Any]

    def may_call(self, function: str, turn: int) -> bool:
        return function in self.functions and turn >= self.allowed.get(function, 0)

    def message(self, turn: int, functions: Mapping[str, Function]) -> str:
        """The user's message that begins a user turn."""
        added = [functions[name].rendered for name, at in self.revealed.items() if at == turn]
        return package.FUNCTIONS_ADDED.format(functions="\n".join(added)) if added else self.questions[turn]

    def newly_allowed(self, turn: int) -> list[str]:
        """The withheld functions that may be called from this user turn on."""
        return [name for name, at in self.allowed.items() if at == turn]


def find_task(name: str) -> Task:
    """The task of this id, of any category. Raises LookupError if there is none."""
    category, _, number = name.removeprefix("multi_turn_").rpartition("_")
    for known in package.CATEGORIES:
        tasks = load_tasks(known)
        if known == category and number.isdecimal() and int(number) < len(tasks) and tasks[int(number)].name == name:
            return tasks[int(number)]
    raise LookupError(f"there is no task {name!r} here; the tool `tasks` lists them")


@cache
def load_tasks(category: Category) -> Sequence[Task]:
    """The tasks of a category in the leaderboard's order."""
    truths = package.ground_truths(category)
    entries = package.task_entries(category)
    return [_task(category, scenario, entry, truths[entry["id"]]) for scenario, entry in enumerate(entries)]


def _task(category: Category, scenario: int, entry: Mapping[str, Any], ground_truth: list[list[str]]) -> Task:
    excluded = entry.get("excluded_function", ())
    documents = [document for name in entry["involved_classes"] for document in package.function_documents(name)]
    revealed = {name: int(turn) for turn, names in entry.get("missed_function", {}).items() for name in names}
    first_use: dict[str, int] = {}
    for turn, calls in enumerate(ground_truth if revealed else ()):
        for call in calls:
            first_use.setdefault(read(call)[0], turn)
    return Task(
        name=entry["id"],
        scenario=scenario,
        category=category,
        questions=tuple("\n".join(message["content"] for message in turn) for turn in entry["question"]),
        ground_truth=tuple(map(tuple, ground_truth)),
        classes=tuple(entry["involved_classes"]),
        functions=tuple(document["name"] for document in documents if document["name"] not in excluded),
        revealed=revealed,
        allowed={name: min(turn, first_use.get(name, turn)) for name, turn in revealed.items()},
        initial_config=entry["initial_config"],
    )


def tasks_of(category: Category, split: Split) -> list[Task]:
    """The tasks of a category whose scenarios are in the split."""
    tests = _test_scenarios()
    return [task for task in load_tasks(category) if (task.scenario in tests) is (split == "test")]


@cache
def _test_scenarios() -> frozenset[int]:
    """The scenarios of the test split: every fourth of the groups that share an initial state or an opening message.

    The four variants of a scenario have one number, so they are on one side.
    """
    group: dict[int, int] = {}
    seen: dict[str, int] = {}
    for category in package.CATEGORIES:
        for task in load_tasks(category):
            found = group.setdefault(task.scenario, task.scenario)
            for key in (json.dumps(task.initial_config, sort_keys=True), f"opening: {task.questions[0]}"):
                other = group[seen.setdefault(key, task.scenario)]
                if other != found:
                    first, last = sorted((found, other))
                    group = {scenario: first if at == last else at for scenario, at in group.items()}
                    found = first
    tests = set(sorted(set(group.values()))[_EVERY - 1 :: _EVERY])
    return frozenset(scenario for scenario, first in group.items() if first in tests)
