"""The tasks of an environment by name and number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mcp_servers.kit.answers import Split

_TEST_SEEDS = 100_000
"""Where the seeds of the test tasks begin; no train split is that long."""
_NUMBER = re.compile(r"[0-9]{4,6}")


@dataclass(frozen=True, slots=True)
class Splits:
    """`PREFIX-train-0000`, `PREFIX-train-0001`, ..., and as many of each split as `sizes` says."""

    prefix: str
    sizes: Mapping[Split, int]

    def names(self, split: Split) -> list[str]:
        return [self._name(split, index) for index in range(self.sizes[split])]

    def parse(self, task: str) -> tuple[Split, int]:
        """A task's split, and its number there, from 0.

        Raises:
            LookupError: there is no such task.
        """
        for split, size in self.sizes.items():
            if not task.startswith(f"{self.prefix}-{split}-"):
                continue
            number = task.rpartition("-")[2]
            # Spelt as `names` spells it and in no other way: a second name of a task would be a second world.
            if _NUMBER.fullmatch(number) and int(number) < size and task == self._name(split, int(number)):
                return split, int(number)
        raise LookupError(f"there is no task {task!r} here")

    def seed(self, task: str) -> int:
        """The seed to list a task with; the splits' seeds do not overlap either. Raises as `parse` does."""
        split, index = self.parse(task)
        return index + (_TEST_SEEDS if split == "test" else 0)

    def _name(self, split: Split, index: int) -> str:
        return f"{self.prefix}-{split}-{index:04d}"
