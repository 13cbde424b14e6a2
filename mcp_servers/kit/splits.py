"""The tasks of an environment: their names and seeds, and listing them for the `tasks` tool."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from mcp_rollout.mcp_servers.kit.records import Difficulty, Split, TaskItem

_NUMBER = re.compile(r"[0-9]{4,6}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """What a task and a seed stand for; environments derive from it and add their own fields."""

    task: str
    seed: int
    prompt: str
    """The user's opening message."""
    difficulty: Difficulty


@dataclass(frozen=True, slots=True)
class Splits:
    """Tasks named `PREFIX-train-0000`, `PREFIX-train-0001`, ..., `PREFIX-test-0000`, ...

    Args:
        prefix: The first part of each name.
        sizes: Number of tasks per split.
        first_seeds: Seed of each split's first task. The default seeds of two splits must not overlap.
    """

    prefix: str
    sizes: Mapping[Split, int]
    first_seeds: Mapping[Split, int] = field(default_factory=lambda: {"train": 0, "test": 100_000})

    def names(self, split: Split) -> list[str]:
        return [self._name(split, index) for index in range(self.sizes[split])]

    def parse(self, task: str) -> tuple[Split, int]:
        """Returns a task's split and its index in the split, from 0.

        Raises:
            LookupError: There is no such task.
        """
        for split, size in self.sizes.items():
            if not task.startswith(f"{self.prefix}-{split}-"):
                continue
            number = task.rpartition("-")[2]
            # Only the spelling that `names` uses is accepted: a second name of a task would be a second world.
            if _NUMBER.fullmatch(number) and int(number) < size and task == self._name(split, int(number)):
                return split, int(number)
        raise LookupError(f"there is no task {task!r} here; the tool `tasks` lists them")

    def seed(self, task: str) -> int:
        """The seed that `tasks` lists with a task. Raises LookupError as `parse` does."""
        split, index = self.parse(task)
        return self.first_seeds[split] + index

    def first(self, split: Split) -> tuple[str, int]:
        """A split's first task and its seed, for example for rehearsals."""
        task = self._name(split, 0)
        return task, self.seed(task)

    def items(self, split: Split, make: Callable[[str, int], Problem]) -> Iterator[TaskItem]:
        """Yields the split's tasks as `tasks` lists them; each problem is made when it is needed."""
        for task in self.names(split):
            made = make(task, self.seed(task))
            yield TaskItem(task=task, seed=made.seed, prompt=made.prompt, difficulty=made.difficulty)

    def _name(self, split: Split, index: int) -> str:
        return f"{self.prefix}-{split}-{index:04d}"
