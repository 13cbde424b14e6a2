"""The strategy `tree`: leaves share the beginnings of their roots, token by token and call by call."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from trees import SCORED, TURNS, Engine, World, check_against, grow, own, same
from worlds import task

from mcp_rollout.rollout.environment.sections import TreeConfig
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.loop.group import Group
from mcp_rollout.rollout.loop.recording import BranchingPoint
from mcp_rollout.rollout.loop.replay import Branch
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.trace.store import read_traces

pytestmark = pytest.mark.anyio


def sample_of(trace: Trace) -> tuple[Any, ...]:
    return trace.prompt_ids, trace.response_ids, trace.loss_mask, trace.logprobs, trace.spans, trace.messages


@pytest.mark.parametrize("branch_at", ["uniform", "first_turns", "entropy"])
@pytest.mark.parametrize("snapshots", [False, True])
async def test_leaves_share_beginnings_that_are_sampled_once(tmp_path: Path, branch_at: str, snapshots: bool) -> None:
    world, engine = World(snapshots=snapshots), Engine(own)
    traces = await grow(
        {"world": world.server}, engine, tmp_path, leaves=6, tree={"roots": 2, "branch_at": branch_at}, **SCORED
    )
    check_against(engine, traces)
    for sample, trace in traces.items():
        assert trace.stop_reason is StopReason.ANSWERED and trace.strategy.use == "tree" and not trace.strategy.note
        assert (trace.origin.parent is None) == (sample < 2)
        if sample < 2:
            continue
        parent, strategy = traces[sample % 2], trace.strategy
        shared = trace.origin.branched_at or 0
        assert trace.origin.parent == parent.id and 1 <= strategy.shared_turns < TURNS
        ids, of_parent = trace.prompt_ids + trace.response_ids, parent.prompt_ids + parent.response_ids
        assert ids[:shared] == of_parent[:shared] and ids != of_parent
        assert strategy.shared_tokens == sum(turn.sampled for turn in parent.turns[: strategy.shared_turns])
        assert strategy.restored is snapshots
        assert strategy.replayed_calls == (0 if snapshots else strategy.shared_turns)
        assert world.seen[trace.id] == (TURNS - 1) - (strategy.shared_turns if snapshots else 0)
    assert world.restored == (4 if snapshots else 0)


@pytest.mark.parametrize("snapshots", [False, True])
async def test_a_branch_that_goes_on_as_its_parent_did_is_the_parents_sample(tmp_path: Path, snapshots: bool) -> None:
    world = World(snapshots=snapshots)
    traces = await grow({"world": world.server}, Engine(same), tmp_path, leaves=5, tree={"roots": 1}, **SCORED)
    assert [trace.origin.parent for trace in traces.values()] == [None, *["leaf-0"] * 4]
    for trace in traces.values():
        assert sample_of(trace) == sample_of(traces[0]) and trace.reward == traces[0].reward


async def test_the_oldest_weights_of_what_was_inherited_count(tmp_path: Path) -> None:
    traces = await grow({"world": World().server}, Engine(own), tmp_path, leaves=2, tree={"roots": 1}, **SCORED)
    shared = traces[1].strategy.shared_turns
    assert [turn.weights_version[0] for turn in traces[1].turns] == [5] * shared + [6] * (TURNS - shared)


async def test_uniform_gives_every_turn_but_the_first_the_same_chance() -> None:
    chosen = Counter[int]()
    finished = Trace.begin("root", task(), Origin())
    finished.response_ids, finished.stop_reason = [1], StopReason.ANSWERED
    point = BranchingPoint(generations=0, calls=0, tokens=0, context="", snapshot=None)
    for row in range(100):
        group = Group(5)
        group.record(0, "root").points = [point] * 5
        group.leave(0, finished)
        for sample in range(1, 5):
            found = await group.branch(Origin(row=row, sample=sample), TreeConfig(roots=1))
            assert isinstance(found, Branch)
            chosen[found.turn] += 1
    assert sorted(chosen) == [1, 2, 3, 4] and all(70 <= count <= 130 for count in chosen.values()), chosen


async def test_entropy_branches_at_the_most_surprising_turns(tmp_path: Path) -> None:
    engine = Engine(own, surprisal=lambda turn: {0: 9.0, 1: 1.0, 2: 3.0, 3: 2.0}[turn])
    tree = {"roots": 1, "branch_at": "entropy"}
    traces = await grow({"world": World().server}, engine, tmp_path, leaves=5, tree=tree, **SCORED)
    assert [trace.strategy.shared_turns for trace in traces.values()] == [0, 2, 3, 1, 2]


async def test_first_turns_branches_off_a_root_that_is_still_running(tmp_path: Path) -> None:
    has_branched = anyio.Event()

    async def before(sample: int, turn: int) -> None:
        if sample == 1:
            has_branched.set()
        elif turn == 2:
            with anyio.fail_after(10):
                await has_branched.wait()

    tree = {"roots": 1, "branch_at": "first_turns", "first_turns": 1}
    engine = Engine(own, before=before)
    traces = await grow({"world": World().server}, engine, tmp_path, leaves=2, tree=tree, **SCORED)
    assert traces[1].strategy.shared_turns == 1 and traces[0].stop_reason is StopReason.ANSWERED
    check_against(engine, traces)


async def test_a_world_that_answers_differently_makes_the_leaf_a_chain(tmp_path: Path) -> None:
    count = itertools.count()
    world, engine = World(answer=lambda total: (f"{total}, call {next(count)}", {})), Engine(own)
    traces = await grow({"world": world.server}, engine, tmp_path, leaves=3, tree={"roots": 1}, **SCORED)
    for trace in list(traces.values())[1:]:
        assert trace.stop_reason is StopReason.ANSWERED and trace.origin.parent is None
        assert (trace.origin.attempt, trace.strategy.shared_turns) == (1, 0)
        assert "call 0" in trace.strategy.diverged and trace.id != f"leaf-{trace.origin.sample}"
        assert len(trace.turns) == TURNS
    recorded = list(read_traces(tmp_path))
    first = [trace for trace in recorded if trace.failure is not None]
    assert [trace.failure.kind for trace in first if trace.failure] == ["diverged"] * 2
    assert all(len(trace.turns) == 1 for trace in first)  # found at the first call that differs
    assert len(recorded) == 5


async def test_fields_that_the_server_declares_volatile_may_differ(tmp_path: Path) -> None:
    count = itertools.count()

    def answer(total: int) -> tuple[str, dict[str, Any]]:
        text = f'{{"total": {total}, "stat": [{{"clock": {next(count)}}}]}}'
        return text, {"mcp-rollout/volatile": ["stat.clock"]}

    traces = await grow(
        {"world": World(answer=answer).server}, Engine(own), tmp_path, leaves=3, tree={"roots": 1}, **SCORED
    )
    for trace in list(traces.values())[1:]:
        assert trace.origin.parent == "leaf-0" and not trace.strategy.diverged
        shared = trace.strategy.shared_turns
        # The policy has read the recorded clock, and the branch keeps it.
        assert [turn.tools[0].text for turn in trace.turns[:shared]] == [
            turn.tools[0].text for turn in traces[0].turns[:shared]
        ]
