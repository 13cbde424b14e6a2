"""What each trainer mode could reach without any overhead: groups that take time, and a trainer that takes time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, kw_only=True)
class Played:
    """A trajectory of a measured run, in the engine's time."""

    generations_s: float
    tools_s: float
    tokens: int
    """Trained ones."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    idle: float
    """Share of the engine's sequences that generate nothing, of those that a batch has."""
    tokens_per_minute: float


@dataclass
class _Group:
    issued: int
    left_s: float
    members: Sequence[Played]


def bound(
    mode: str, staleness: int, played: Sequence[Played], *, prompts: int, samples: int, train_s: float, steps: int = 400
) -> Bound:
    """Simulate so many steps.

    Args:
        mode: `sync`; `colocate`, in which generation stands still while the trainer trains; or `separate`.
        staleness: Batches in flight beside the one that is waited for, and the most steps that a prompt waits.
        played: Trajectories to draw from.
        prompts: Groups of a batch.
        samples: Trajectories of a group.
        train_s: Seconds of a trainer's step.
    """
    random, flying = Random(0), list[_Group]()
    clock, tokens, generated = 0.0, 0, 0.0

    def issue(step: int, count: int) -> None:
        for _ in range(count):
            members = random.choices(played, k=samples)
            # Siblings are played side by side, so a group takes as long as its slowest.
            slowest = max(each.generations_s + each.tools_s for each in members)
            flying.append(_Group(step, slowest, members))

    issue(1, staleness * prompts)
    for step in range(1, steps + 1):
        issue(step, prompts)
        must = [group for group in flying if step - group.issued >= staleness] if staleness else flying
        needed = sorted(flying, key=lambda group: group.left_s)[prompts - 1].left_s
        waited = max(0.0, needed, *(group.left_s for group in must))
        clock += waited + train_s
        for group in flying:
            group.left_s -= waited
        ready = sorted((group for group in flying if group.left_s <= 1e-9), key=lambda group: group.issued)[:prompts]
        for group in ready:
            flying.remove(group)
            tokens += sum(each.tokens for each in group.members)
            generated += sum(each.generations_s for each in group.members)
        if mode == "separate":
            for group in flying:
                group.left_s -= train_s
    return Bound(idle=1 - generated / (prompts * samples * clock), tokens_per_minute=60 * tokens / clock)
