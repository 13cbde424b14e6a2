"""Batches that teach nothing: the name of each defect, what stops a training, what is never said of a healthy one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from mcp_rollout.rollout.trace.outcome import StopReason
from mcp_rollout.rollout.training.void import Defect, Evidence, VoidRun, VoidWatch, findings, zero_advantages

Batch = list[Evidence]
PLAYED = Evidence(
    group="row 0", ended=StopReason.ANSWERED, failure="", score=0.0, best=1.0, components={"solved": 0.0},
    turns=3, calls=2, errors=0, sampled=90, unread="", error="",
)  # fmt: skip


def batch(change: Callable[[int], dict[str, object]], *, groups: int = 4, samples: int = 4) -> Batch:
    """Trajectories of some rows, each changed by its number."""
    return [
        replace(PLAYED, group=f"row {number // samples}", **change(number))  # type: ignore[arg-type]
        for number in range(groups * samples)
    ]


def scored(score: float, **parts: float) -> dict[str, object]:
    return {"score": score, "components": parts or {"solved": score}}


HEALTHY = batch(lambda number: scored(float(number % 4 == 0)))
DEFECTS: dict[str, tuple[Defect, Batch]] = {
    "no call is readable": (Defect.NO_CALLS, batch(lambda _: {"calls": 0, "unread": "<tool>add(1, 2)</tool>"})),
    "nothing has a weight": (Defect.NO_CALLS, batch(lambda _: {"calls": 0, "best": 0.0, "components": {}})),
    "the server fails every call": (
        Defect.CALLS_FAIL, batch(lambda number: scored(number / 20) | {"errors": 2, "error": "connection refused"})
    ),
    "no tool has such a name": (Defect.CALLS_FAIL, batch(lambda _: {"errors": 2, "mistakes": 2, "error": "unknown"})),
    "the response is too short": (Defect.CUT, batch(lambda _: {"ended": StopReason.TOKEN_LIMIT})),
    "the clock is too short": (Defect.CUT, batch(lambda _: {"ended": StopReason.TIME_LIMIT})),
    "the world never starts": (Defect.WITHDRAWN, batch(lambda _: {"failure": "server_unavailable: gone"})),
    "no task is ever solved": (Defect.TIED, batch(lambda _: scored(0.0))),
    "everybody gets the same": (Defect.TIED, batch(lambda _: scored(0.3))),
    "a component never holds": (
        Defect.CONSTANT, batch(lambda number: scored(number % 2 / 2, solved=0.0, format=number % 2))
    ),
    "a judge praises everything": (
        Defect.CONSTANT, batch(lambda number: scored(1.0, polite=1.0) | {"judged": frozenset({"polite"})})
    ),
    "the reward needs no tool": (Defect.UNEARNED, batch(lambda number: scored(number % 2) | {"calls": 0}, groups=8)),
    "the reward needs no call that works": (
        Defect.UNEARNED, batch(lambda number: scored(number % 2) | {"errors": 2 * (number % 2)}, groups=8)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_named_within_two_batches_with_a_remedy_and_only_once(name: str) -> None:
    defect, planted = DEFECTS[name]
    watch = VoidWatch(0, tool_format="hermes")
    named = [finding for _ in range(6) for finding in watch.add(planted)][: len(planted)]
    assert [finding.defect for finding in named] == [defect]
    assert all(finding.problem and finding.remedy for finding in named)
    fresh = VoidWatch(0)
    assert [finding.defect for _ in range(2) for finding in fresh.add(planted)] == [defect]


@pytest.mark.parametrize("name", DEFECTS)
def test_what_cannot_heal_stops_training_after_so_many_batches_in_a_row_and_nothing_else_does(name: str) -> None:
    defect, planted = DEFECTS[name]
    watch = VoidWatch(3)
    for each in (planted, planted, HEALTHY, planted, planted):
        watch.add(each)
    if defect.heals:
        watch.add(planted)
    else:
        with pytest.raises(VoidRun, match=rf"after 3 batches .*\({defect}\)(.|\n)*Remedy: "):
            watch.add(planted)


def test_the_message_shows_what_was_written_and_how_it_was_read() -> None:
    _, planted = DEFECTS["no call is readable"]
    (finding,) = findings(planted, tool_format="hermes")
    assert "<tool>add(1, 2)</tool>" in str(finding) and "read as hermes" in str(finding)
    (finding,) = findings(DEFECTS["the response is too short"][1])
    assert "data.max_response_length=256 " in str(finding)


def course(rate: Callable[[int], float], *, steps: int, groups: int, seed: int) -> Sequence[Batch]:
    """The batches of a training whose rows are solved with a probability that depends on the step."""
    random = Random(seed)

    def play(step: int) -> dict[str, object]:
        solved = float(random.random() < rate(step))
        ended = StopReason.TOKEN_LIMIT if random.random() < 0.2 else StopReason.ANSWERED
        errors = 2 if solved == 0.0 and random.random() < 0.3 else 0
        parts = {"solved": solved, "format": 1.0 if random.random() < 0.9 else 0.5}
        score = 0.9 * solved + 0.1 * parts["format"]
        return scored(score, **parts) | {"ended": ended, "errors": errors}

    return [batch(lambda _, step=step: play(step), groups=groups, samples=8) for step in range(steps)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "rate",
    [lambda step: 0.01, lambda step: min(1.0, 0.05 * step), lambda step: 0.5, lambda step: 1.0],
    ids=["sparse", "learning", "even", "converged"],
)
def test_a_healthy_training_is_never_stopped_and_says_nothing(rate: Callable[[int], float], seed: int) -> None:
    watch = VoidWatch(3)
    said = [finding for each in course(rate, steps=30, groups=32, seed=seed) for finding in watch.add(each)]
    assert said == []


def test_a_few_trajectories_prove_nothing() -> None:
    for defect, planted in DEFECTS.values():
        few = findings(planted[:7])
        assert [finding.defect for finding in few] == ([Defect.WITHDRAWN] if defect is Defect.WITHDRAWN else [])
    assert findings([]) == []


def test_the_share_of_zero_advantages_counts_trajectories_of_groups_with_one_reward() -> None:
    assert [zero_advantages(each) for each in ([], HEALTHY, DEFECTS["no task is ever solved"][1])] == [0.0, 0.0, 1.0]
    withdrawn = replace(HEALTHY[0], failure="server_unavailable: gone")
    assert zero_advantages([withdrawn, *HEALTHY[1:]]) == 3 / 15
