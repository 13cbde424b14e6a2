"""Advantages by turn: `tree_grpo` and `step_grpo`, beside verl's own estimators.

Both give each trajectory one vote in its row's baseline, however many training samples it has, and each token the
advantage of its turn. With R_i the score of trajectory i, and mu and sigma the mean and the standard deviation (with
n - 1) of the scores of i's row, the advantage of GRPO (arXiv 2402.03300) is

    E_i = (R_i - mu) / (sigma + eps).

`algorithm.norm_adv_by_std_in_grpo=False` replaces each denominator here by 1. As in verl, a row with one trajectory has
mu = 0 and sigma = 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import fmean, stdev

import structlog

from mcp_rollout.rollout.trace.outcome import ROUNDING
from mcp_rollout.rollout.verl.rolled_out import RolledOut

log = structlog.get_logger(__name__)

EPSILON = 1e-6
FLOOR = 1e-5
"""The least denominator of the comparison in a state, relative to its returns; float32, in which verl keeps scores,
rounds at a hundredth of it."""
ByTurn = list[list[float]]
"""The advantage of each turn, by trajectory."""


def tree_grpo(rolled_out: Sequence[RolledOut], *, weight: float, normalise: bool) -> ByTurn:
    """Compare a leaf with the leaves below its branching point, and with its row.

    For turn t of leaf i, p is the last branching point at or before t on i's path, and B the leaves below p: i, and
    those that share at least the turns before p with it. Then

        A_i(t) = (1 - w) E_i + w (R_i - mean of R over B) / (sigma + eps),

    and A_i(t) = E_i before the first branching point. After Tree-GRPO (arXiv 2509.21240), with differences: there
    A_i = E_i + (R_i - mean of R over i's tree) / (deviation of R over i's tree), one value for the whole trajectory,
    shared turns included. Here the second comparison is by turn and among the leaves below its branching point; it is
    divided by the row's deviation, so that a subtree of two leaves is not blown up; and the terms are weighted, not
    added, so that no weight gives the published estimator.

    Biased: the mean over B contains R_i, which shrinks the second term by 1 - 1/|B|, as in GRPO. Leaves of a tree share
    their beginnings, so mu is the mean of dependent scores. Shared tokens are in the sample of each leaf that shares
    them, and weigh that often in the loss. With `branch_at: entropy`, what follows the most
    uncertain turns is trained on more often.

    Args:
        rolled_out: the trajectories.
        weight: w, from 0 (GRPO) to 1.
        normalise: whether to divide by the standard deviation.
    """
    trees: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for index, each in enumerate(rolled_out):
        trees[each.uid, each.tree].append(index)
    rows = _rows(rolled_out, normalise=normalise)
    advantages: ByTurn = []
    for index, leaf in enumerate(rolled_out):
        mean, scale = rows[leaf.uid]
        of_row = (leaf.score - mean) / scale
        shared = {
            other: _shared_turns(leaf, rolled_out[other]) for other in trees[leaf.uid, leaf.tree] if other != index
        }
        own: list[float] = []
        for turn in range(leaf.turns):
            passed = [point for point in shared.values() if point <= turn]
            if not passed:
                own.append(of_row)
                continue
            below = [rolled_out[other].score for other, point in shared.items() if point >= max(passed)]
            of_tree = (leaf.score - fmean([leaf.score, *below])) / scale
            own.append((1 - weight) * of_row + weight * of_tree)
        advantages.append(own)
    return advantages


def step_grpo(rolled_out: Sequence[RolledOut], *, weight: float, discount: float, normalise: bool) -> ByTurn:
    """Compare a turn with the turns that other trajectories of the row took in the same state, as GiGPO does.

    With r_i(k) the reward of turn k, to which the last turn adds what of R_i no turn earned, the return of turn t is

        G_i(t) = sum over k >= t of discount^(k - t) r_i(k).

    A state s has a group of returns, G_j(k) for each turn k that any trajectory j of the row took in s, a trajectory as
    often as it was there. With m(s) and d(s) the mean and the standard deviation (with n - 1) of its N returns,

        A_i(t) = E_i + w (G_i(t) - m(s)) / max(d(s), floor)    with s the state of turn t,

    as in GiGPO (arXiv 2505.10978), and A_i(t) = E_i where no other turn of the row was taken in s, or no server says
    what the state is. The second term is at most w sqrt(N). The floor is `FLOOR` times the largest of 1 and the group's
    returns: what differs less is rounding, and is logged.

    Biased: E_i and the second term count the same reward twice; states that many turns are taken in have better
    baselines than rare ones; a trajectory that returns to a state often weighs more in its baseline, and with a
    discount below 1 its earlier turns there look worse than its later ones; and a digest that leaves out a part of the
    state compares unlike turns.

    Args:
        rolled_out: the trajectories.
        weight: w; 0 is GRPO.
        discount: of the rewards of later turns.
        normalise: whether to divide by the standard deviations.
    """
    rows = _rows(rolled_out, normalise=normalise)
    returns = [_returns(each, discount) for each in rolled_out]
    visits: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for each, own in zip(rolled_out, returns, strict=True):
        for turn, value in enumerate(own):
            if _anchor(each, turn):
                visits[each.uid, _anchor(each, turn)].append(value)
    states = _states(visits, normalise=normalise)
    advantages: ByTurn = []
    for index, each in enumerate(rolled_out):
        mean, scale = rows[each.uid]
        of_row = (each.score - mean) / scale
        own: list[float] = []
        for turn, value in enumerate(returns[index]):
            state = states.get((each.uid, _anchor(each, turn)))
            own.append(of_row + (weight * (value - state[0]) / state[1] if state is not None else 0.0))
        advantages.append(own)
    return advantages


def _states(
    visits: Mapping[tuple[str, str], Sequence[float]], *, normalise: bool
) -> dict[tuple[str, str], tuple[float, float]]:
    """Mean and denominator of each state with several visits."""
    found = {state: (fmean(values), 1.0) for state, values in visits.items() if len(values) > 1}
    if not normalise:
        return found
    rounding = 0
    for state, (mean, _) in found.items():
        unit, deviation = max(1.0, *map(abs, visits[state])), stdev(visits[state])
        found[state] = mean, max(deviation, FLOOR * unit)
        rounding += ROUNDING * unit < deviation < FLOOR * unit
    if rounding:
        log.warning(
            "returns in a state differ by rounding only: step_grpo gives its turns next to no advantage of their own",
            states=rounding,
            of=len(found),
        )
    return found


def _rows(rolled_out: Sequence[RolledOut], *, normalise: bool) -> dict[str, tuple[float, float]]:
    """Mean and denominator of each row."""
    scores: defaultdict[str, list[float]] = defaultdict(list)
    for each in rolled_out:
        scores[each.uid].append(each.score)
    return {
        uid: _baseline(values, normalise=normalise) if len(values) > 1 else (0.0, 1.0) for uid, values in scores.items()
    }


def _baseline(values: Sequence[float], *, normalise: bool) -> tuple[float, float]:
    return fmean(values), stdev(values) + EPSILON if normalise else 1.0


def _shared_turns(one: RolledOut, other: RolledOut) -> int:
    """Number of turns that two leaves of a tree have in common."""
    return min(leaf.shared_turns for leaf in (one, other) if leaf.shared_turns)


def _returns(trajectory: RolledOut, discount: float) -> list[float]:
    rewards = [*trajectory.rewards, *[0.0] * trajectory.turns][: trajectory.turns]
    if rewards:
        rewards[-1] += trajectory.score - sum(rewards)
    return list(accumulate(reversed(rewards), lambda later, own: own + discount * later))[::-1]


def _anchor(trajectory: RolledOut, turn: int) -> str:
    return trajectory.anchors[turn] if turn < len(trajectory.anchors) else ""
