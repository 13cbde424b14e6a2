"""`tree_grpo` and `step_grpo` against their equations, written down once more in a few lines."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.trace.events import ToolEvent, UserEvent
from mcp_rollout.rollout.trace.record import Reward, Trace, Turn
from mcp_rollout.rollout.types import FinishReason

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]
EPSILON = 1e-6


def some_batch(seed: int) -> list[Any]:
    """Two rows of two trees each, with turn rewards and states that repeat within and across trajectories."""
    from mcp_rollout.rollout.verl.rolled_out import RolledOut

    rng, found = random.Random(seed), list[RolledOut]()
    for uid in "ab":
        for root in range(2):
            length = rng.randint(3, 6)
            for leaf in range(4):
                turns = length if leaf == 0 else rng.randint(3, 6)
                found.append(
                    RolledOut(
                        uid=uid,
                        tree=f"{uid}{root}",
                        shared_turns=0 if leaf == 0 else rng.randint(1, min(length, turns) - 1),
                        turns=turns,
                        score=rng.random(),
                        rewards=[rng.choice([0.0, 0.1]) for _ in range(turns)] if rng.random() < 0.7 else [],
                        anchors=[rng.choice("pqrs") for _ in range(turns)],
                    )
                )
    rng.shuffle(found)
    return found


def of_row(leaf: Any, batch: list[Any]) -> tuple[float, float]:
    scores = np.array([each.score for each in batch if each.uid == leaf.uid])
    return (leaf.score - scores.mean()) / (scores.std(ddof=1) + EPSILON), scores.std(ddof=1) + EPSILON


@pytest.mark.parametrize("seed", range(8))
def test_tree_grpo_is_its_equation(seed: int) -> None:
    from mcp_rollout.rollout.verl.advantages import tree_grpo

    batch, weight = some_batch(seed), 0.3
    # Each turn as a node: shared turns are the same node, which the root's name and the turn's number identify.
    paths = [
        [(each.tree, turn) if turn < (each.shared_turns or each.turns) else (id(each), turn) for turn in range(40)]
        for each in batch
    ]
    paths = [
        [(each.tree, turn) if each.shared_turns == 0 else node for turn, node in enumerate(path)]
        for each, path in zip(batch, paths, strict=True)
    ]
    for leaf, path, found in zip(batch, paths, tree_grpo(batch, weight=weight, normalise=True), strict=True):
        row, scale = of_row(leaf, batch)
        same = [[one == two for one, two in zip(path, other, strict=True)] for other in paths]
        parted = [each.index(False) for each in same if False in each and each[0]]
        for turn in range(leaf.turns):
            points = [point for point in parted if point <= turn]
            below = [each.score for each, one in zip(batch, same, strict=True) if points and all(one[: max(points)])]
            wanted = (1 - weight) * row + weight * (leaf.score - np.mean(below)) / scale if points else row
            assert found[turn] == pytest.approx(wanted)


def returns_of(each: Any, discount: float) -> list[float]:
    rewards = np.array([*each.rewards] or [0.0] * each.turns)
    rewards[-1] += each.score - rewards.sum()
    return [sum(discount ** (k - t) * rewards[k] for k in range(t, each.turns)) for t in range(each.turns)]


@dataclass(frozen=True)
class Step:
    """One element (a_t, R_t) of a step-level group of GiGPO (arXiv 2505.10978, section 4.2), and where it is from."""

    trajectory: int
    time: int
    discounted_return: float


def gigpo(batch: list[Any], *, omega: float, gamma: float) -> list[list[float]]:
    """GiGPO as its paper describes it: A(a_t) = A^E(tau) + omega A^S(a_t), F_norm the standard deviation.

    "all unique environment states appearing in the group trajectories" are anchors; the group of an anchor has every
    action taken there, by any trajectory at any time; A^S is its return less the group's mean, divided by F_norm.
    """
    advantages = [[of_row(each, batch)[0]] * each.turns for each in batch]
    for uid in {each.uid for each in batch}:
        group = [number for number, each in enumerate(batch) if each.uid == uid]
        for anchor in {state for number in group for state in batch[number].anchors}:
            steps = [
                Step(number, time, returns_of(batch[number], gamma)[time])
                for number in group
                for time, state in enumerate(batch[number].anchors)
                if state == anchor
            ]
            values = np.array([step.discounted_return for step in steps])
            for step in steps if len(steps) > 1 else ():
                relative = (step.discounted_return - values.mean()) / values.std(ddof=1)
                advantages[step.trajectory][step.time] += omega * relative
    return advantages


@pytest.mark.parametrize("seed", range(8))
def test_step_grpo_is_gigpo_as_its_paper_describes_it(seed: int) -> None:
    from mcp_rollout.rollout.verl.advantages import step_grpo

    batch = some_batch(seed)
    found = step_grpo(batch, weight=0.7, discount=0.9, normalise=True)
    for own, wanted in zip(found, gigpo(batch, omega=0.7, gamma=0.9), strict=True):
        assert own == pytest.approx(wanted, rel=1e-5)


def trajectories(scores: Sequence[float], paths: Sequence[str], rewards: Sequence[Sequence[float]] = ()) -> list[Any]:
    """Trajectories of one row, each with a letter for the state of each turn."""
    from mcp_rollout.rollout.verl.rolled_out import RolledOut

    return [
        RolledOut(
            uid="row",
            tree=str(number),
            turns=len(path),
            score=score,
            rewards=rewards[number] if rewards else (),
            anchors=list(path),
        )
        for number, (score, path) in enumerate(zip(scores, paths, strict=True))
    ]


def step_terms(batch: list[Any], discount: float) -> list[float]:
    """The comparison in the same state alone, of all turns."""
    from mcp_rollout.rollout.verl.advantages import step_grpo

    both = step_grpo(batch, weight=1.0, discount=discount, normalise=True)
    row = step_grpo(batch, weight=0.0, discount=discount, normalise=True)
    return [one - other for own, of_row in zip(both, row, strict=True) for one, other in zip(own, of_row, strict=True)]


def test_a_state_that_equal_trajectories_visit_twice_compares_their_visits() -> None:
    batch = trajectories([1.0] * 8, ["spqp"] * 8)
    assert step_terms(batch, 0.95) == pytest.approx([0, -np.sqrt(15 / 16), 0, np.sqrt(15 / 16)] * 8)


SCORES = st.floats(-10, 10, allow_subnormal=False)
GROUPS = st.lists(st.tuples(SCORES, st.text("pqr", min_size=1, max_size=6)), min_size=1, max_size=8)
EXAMPLES = settings(max_examples=150, deadline=None)


@EXAMPLES
@given(GROUPS, st.floats(0, 1))
def test_a_step_is_finite_and_bounded_by_the_root_of_its_states_visits(
    group: list[tuple[float, str]], discount: float
) -> None:
    scores, paths = zip(*group, strict=True)
    visits = Counter("".join(paths))
    bounds = [math.sqrt(visits[state]) for state in "".join(paths)]
    terms = step_terms(trajectories(scores, paths), discount)
    assert all(abs(term) <= bound for term, bound in zip(terms, bounds, strict=True))  # NaN is not


@EXAMPLES
@given(SCORES, st.lists(st.tuples(SCORES, st.text("pqr", min_size=1, max_size=6)), min_size=1, max_size=8))
def test_equal_returns_in_a_state_give_no_advantage(score: float, group: list[tuple[float, str]]) -> None:
    """Also where they are equal but for the rounding of what earlier turns have earned."""
    paths = [path for _, path in group]
    none = pytest.approx([0] * sum(map(len, paths)), abs=1e-6)
    assert step_terms(trajectories([score] * len(paths), paths), 1.0) == none
    rewards = [[earned, *[0.0] * len(path)] for earned, path in group]
    batch = trajectories([score + earned for earned, _ in group], [f"s{path}" for path in paths], rewards)
    terms = zip("".join(f"s{path}" for path in paths), step_terms(batch, 1.0), strict=True)
    assert [term for state, term in terms if state != "s"] == none


@EXAMPLES
@given(GROUPS, st.floats(0.01, 100), st.floats(0, 1))
def test_a_step_does_not_depend_on_the_unit_of_rewards(
    group: list[tuple[float, str]], factor: float, discount: float
) -> None:
    scores, paths = zip(*group, strict=True)
    batch = trajectories(scores, paths)
    values: defaultdict[str, list[float]] = defaultdict(list)
    for each in batch:
        for state, value in zip(each.anchors, returns_of(each, discount), strict=True):
            values[state].append(value)
    assume(all(np.std(own, ddof=1) > 0.01 for own in values.values() if len(own) > 1))
    scaled = trajectories([score * factor for score in scores], paths)
    assert step_terms(scaled, discount) == pytest.approx(step_terms(batch, discount), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("difference", "told"), [(0.0, 0), (1e-16, 0), (3e-8, 1), (0.01, 0)])
def test_a_deviation_that_is_rounding_is_told_and_gives_next_to_no_advantage(difference: float, told: int) -> None:
    from mcp_rollout.rollout.verl.advantages import step_grpo

    batch = trajectories([0.3, 0.3 + difference, 0.3], ["sp", "sp", "sr"])
    with capture_logs() as logs:
        step_grpo(batch, weight=1.0, discount=0.0, normalise=True)
        step_grpo(batch, weight=1.0, discount=0.0, normalise=False)
    assert [(log["log_level"], log["states"], log["of"]) for log in logs] == [("warning", 1, 2)] * told
    assert max(map(abs, step_terms(batch, 0.0))) < 0.01 or difference == 0.01


def test_without_weight_both_are_grpo_as_verl_computes_it() -> None:
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    from mcp_rollout.rollout.verl.advantages import step_grpo, tree_grpo

    batch = some_batch(1)
    rewards, mask = torch.tensor([[each.score] for each in batch]), torch.ones(len(batch), 1)
    for normalise in (True, False):
        wanted, _ = compute_grpo_outcome_advantage(
            rewards, mask, np.array([each.uid for each in batch]), norm_adv_by_std_in_grpo=normalise
        )
        for found in (
            tree_grpo(batch, weight=0.0, normalise=normalise),
            step_grpo(batch, weight=0.0, discount=1.0, normalise=normalise),
        ):
            assert [own[0] for own in found] == pytest.approx(wanted[:, 0].tolist(), abs=1e-5)
            assert all(len(set(own)) == 1 for own in found)


def test_the_anchor_of_a_turn_is_what_the_servers_said_last() -> None:
    from mcp_rollout.rollout.verl.rolled_out import anchors

    def turn(*states: str | None, user: str | None = None) -> Turn:
        tools = [
            ToolEvent(name="t", arguments={}, text="", is_error=False, server=f"s{number}", state=state)
            for number, state in enumerate(states)
        ]
        spoken = UserEvent(seq=1, message="", done=False, state=user) if user else None
        return Turn(
            content="", thinking="", begins_at=0, finish_reason=FinishReason.STOP, sampled=1, tools=tools, user=spoken
        )

    task = Task(environment="e", task="t", seed=1, prompt=({"role": "user", "content": ""},))
    trace = Trace.begin("one", task, Origin())
    trace.turns = [turn("a"), turn(None), turn("b", "c"), turn(user="u"), turn()]
    first, after_a, still_a, after_bc, after_user = anchors(trace)
    assert first == "start" and after_a == still_a
    assert len({first, after_a, after_bc, after_user}) == 4
    trace.turns = [turn(None), turn(None)]
    assert anchors(trace) == ["start", ""]


def test_a_samples_columns_have_the_turn_of_each_token() -> None:
    from trace_samples import recorded_trace

    from mcp_rollout.rollout.verl.output import to_outputs

    trace = recorded_trace()
    trace.reward = Reward(score=1.0, turns=[0.25])
    (output,) = to_outputs(trace, ())
    columns = output.as_dict()
    assert columns["mcp"]["rewards"] == [0.25] and columns["mcp"]["tree"] == trace.id
    turns = columns["mcp_turns"].tolist()
    wanted = [-1] * len(trace.response_ids)
    for span in trace.spans:
        if span.kind.is_sampled:
            wanted[span.start : span.end] = [span.turn] * (span.end - span.start)
    assert turns == wanted and len(turns) == len(trace.loss_mask)
