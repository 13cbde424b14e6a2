"""Observe what forks of a server share that its processes do not: what `start: fork` promises there is none of."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mcp_rollout.rollout.doctor.isolation import Run

SAFE = "start: fork would make its starts cheap: its forks have one thread, share no open file, and differ where its \
processes do"


def shared_with_parent(pid: int) -> list[str]:
    """Files, sockets and shared memory that a fork has from before it was forked."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return sorted(_open(pid) & _open(parent))


def alike_in_forks(processes: tuple[Run, Run], forks: Sequence[Run]) -> list[str]:
    """Tools that answered two processes differently, and two forks alike.

    Args:
        processes: Runs of the same script in two processes that were spawned.
        forks: The same in two forks.
    """
    found: dict[str, None] = {}
    for steps in zip(*(run.steps for run in (*processes, *forks)), strict=False):
        one, other, fork, sibling = (step.answer for step in steps)
        if all(answer.well for answer in (one, other, fork, sibling)):
            if one.text != other.text and fork.text == sibling.text:
                found[steps[0].call.name] = None
    return list(found)


def _open(pid: int) -> set[str]:
    """What is open besides the standard streams, pipes and devices, and memory that children write to in common."""
    found: set[str] = set()
    for each in os.scandir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            if int(each.name) > 2 and (target := os.readlink(each.path)).startswith(("/", "socket:")):
                found.add(target)
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        address, access, *_, path = line.split(maxsplit=5)
        if access[1] == "w" and access[3] == "s":
            found.add(f"memory of {path} at {address}")
    return {each for each in found if not each.startswith("/dev/")}
