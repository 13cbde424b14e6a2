"""`tree_grpo` and `step_grpo` against their equations, written down once more in a few lines."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from rollout.environment.task import Origin, Task
from rollout.trace.events import ToolEvent, UserEvent
from rollout.trace.record import Reward, Trace, Turn
from rollout.types import FinishReason

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]
EPSILON = 1e-6


def some_batch(seed: int) -> list[Any]:
    """Two rows of two trees each, with turn rewards and states that repeat within and across trajectories."""
    from rollout.verl.rolled_out import RolledOut

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
    from rollout.verl.advantages import tree_grpo

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


@pytest.mark.parametrize("seed", range(8))
def test_step_grpo_is_its_equation(seed: int) -> None:
    from rollout.verl.advantages import step_grpo

    batch, weight, discount = some_batch(seed), 0.7, 0.9
    found = step_grpo(batch, weight=weight, discount=discount, normalise=True)
    returns = []
    for each in batch:
        rewards = np.array([*each.rewards] or [0.0] * each.turns)
        rewards[-1] += each.score - rewards.sum()
        returns.append([sum(discount ** (k - t) * rewards[k] for k in range(t, each.turns)) for t in range(each.turns)])
    for number, leaf in enumerate(batch):
        for turn in range(leaf.turns):
            votes = [
                np.mean(
                    [value for value, anchor in zip(own, each.anchors, strict=True) if anchor == leaf.anchors[turn]]
                )
                for each, own in zip(batch, returns, strict=True)
                if each.uid == leaf.uid and leaf.anchors[turn] in each.anchors
            ]
            step = (returns[number][turn] - np.mean(votes)) / (np.std(votes, ddof=1) + EPSILON) if votes[1:] else 0
            assert found[number][turn] == pytest.approx(of_row(leaf, batch)[0] + weight * step)


def test_without_weight_both_are_grpo_as_verl_computes_it() -> None:
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    from rollout.verl.advantages import step_grpo, tree_grpo

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
    from rollout.verl.rolled_out import anchors

    def turn(*states: str | None, user: str | None = None) -> Turn:
        tools = [
            ToolEvent(name="t", arguments={}, text="", is_error=False, server=f"s{number}", state=state)
            for number, state in enumerate(states)
        ]
        spoken = UserEvent(seq=1, message="", done=False, state=user) if user else None
        return Turn(content="", thinking="", finish_reason=FinishReason.STOP, sampled=1, tools=tools, user=spoken)

    task = Task(environment="e", task="t", seed=1, prompt=({"role": "user", "content": ""},))
    trace = Trace.begin("one", task, Origin())
    trace.turns = [turn("a"), turn(None), turn("b", "c"), turn(user="u"), turn()]
    first, after_a, still_a, after_bc, after_user = anchors(trace)
    assert first == "start" and after_a == still_a
    assert len({first, after_a, after_bc, after_user}) == 4
    trace.turns = [turn(None), turn(None)]
    assert anchors(trace) == ["start", ""]


def test_samples_of_single_turns_get_their_turns_advantage_and_padding_gets_none(transfer_queue: None) -> None:
    """Through TransferQueue, as the trainer reads it: rows in any order, one of them padding."""
    import torch
    import transfer_queue as tq
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    from rollout.verl.estimators import by_token, read
    from rollout.verl.settings import AdvantagesConfig

    column = {"turns": 2, "tree": "t", "shared_turns": 0, "rewards": [], "anchors": ["start", ""]}
    rows = {
        "u_0_0": torch.tensor([0, 0, -1]),
        "u_0_1": torch.tensor([1]),
        "u_1_0": torch.tensor([0, -1, 1]),
        "pad0_0_0": torch.tensor([0]),
    }
    fields = list_of_dict_to_tensordict(
        [{"mcp_turns": turns, "mcp": column | {"tree": key}} for key, turns in rows.items()]
    )
    tags = [{"is_padding": key.startswith("pad")} for key in rows]
    tq.kv_batch_put(keys=list(rows), partition_id="train", fields=fields, tags=tags)
    order = [3, 1, 2, 0]
    keys, placed = [list(rows)[at] for at in order], [tags[at] for at in order]
    batch = read(tq.KVBatchMeta(partition_id="train", keys=keys, tags=placed), AdvantagesConfig())
    assert [(each.row, each.is_last) for each in batch.samples] == [(1, True), (2, True), (3, False)]
    seen: list[Any] = []

    def estimate(rolled_out: Any) -> list[list[float]]:
        seen.extend(rolled_out)
        return [[10.0 * index + turn + 1 for turn in range(each.turns)] for index, each in enumerate(rolled_out)]

    rewards = torch.tensor([[9.0, 0, 0], [0.25, 0, 0], [0, 0, 0.75], [0, 0.5, 0]])
    mask = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 0, 1], [1, 1, 0]])
    found = by_token(batch, rewards, mask, estimate)
    assert found.tolist() == [[0, 0, 0], [2, 0, 0], [11, 0, 12], [1, 1, 0]]
    assert [(each.uid, each.score) for each in seen] == [("u", 0.25), ("u", 0.75)]  # the last sample's, once


def test_a_samples_columns_have_the_turn_of_each_token() -> None:
    from trace_samples import recorded_trace

    from rollout.verl.output import to_outputs

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
