"""The strategy `tree`: leaves share the beginnings of their roots, token by token and call by call."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, TextContent
from trees import Engine, grow
from worlds import ROLE, task

from rollout.environment.strategy_config import TreeConfig
from rollout.environment.task import Origin
from rollout.errors import EngineError
from rollout.formats import hermes
from rollout.loop.group import Group
from rollout.loop.limits import Limits
from rollout.loop.replay import Branch
from rollout.loop.tape import BranchingPoint
from rollout.trace.record import StopReason, Trace
from rollout.trace.store import read_traces
from rollout.types import Call

pytestmark = pytest.mark.anyio
TURNS = 4


def key(ctx: Context) -> str:
    return (ctx.request_context.meta or {})["mcp-rollout/trajectory"]


class World:
    """`add` adds to a trajectory's number; `seen` has all calls by trajectory. The score is a tenth of the number."""

    def __init__(self, *, answer: Any = None, snapshots: bool = False) -> None:
        self.server = MCPServer("world", log_level="ERROR")
        self.numbers: dict[str, int] = {}
        self.seen = Counter[str]()
        self.restored = 0
        server, numbers = self.server, self.numbers

        @server.tool(name="reset", meta={ROLE: "reset"}, structured_output=False)
        async def reset(task: str, seed: int, ctx: Context) -> str:
            numbers[key(ctx)] = 0
            return "{}"

        @server.tool(structured_output=False)
        async def add(number: int, ctx: Context) -> CallToolResult:
            """Add to the number."""
            self.seen[key(ctx)] += 1
            numbers[key(ctx)] += number
            text, meta = (answer or (lambda total: (f"{total}", {})))(numbers[key(ctx)])
            return CallToolResult(content=[TextContent(type="text", text=text)], _meta=meta)

        @server.tool(name="score", meta={ROLE: "score"})
        async def score(messages: list[dict[str, Any]], ctx: Context) -> dict[str, Any]:
            return {"score": numbers[key(ctx)] / 10, "parts": {}}

        if snapshots:

            @server.tool(name="snapshot", meta={ROLE: "snapshot"})
            async def snapshot(ctx: Context) -> dict[str, Any]:
                return {"state": {"number": numbers[key(ctx)]}}

            @server.tool(name="restore", meta={ROLE: "restore"}, structured_output=False)
            async def restore(state: dict[str, Any], ctx: Context) -> str:
                self.restored += 1
                numbers[key(ctx)] = state["number"]
                return "{}"


def adding(number: int) -> str:
    return hermes.write(thinking="hm", calls=[Call(name="add", arguments={"number": number})])


def same(sample: int, turn: int) -> str:
    """Every leaf says the same."""
    return adding(turn + 1) if turn < TURNS - 1 else "Done."


def own(sample: int, turn: int) -> str:
    """Every leaf says something of its own."""
    return adding(10 * sample + turn + 1) if turn < TURNS - 1 else f"Done, says {sample}."


SCORED = {"reward": {"server": "world"}}


def sample_of(trace: Trace) -> tuple[Any, ...]:
    return trace.prompt_ids, trace.response_ids, trace.loss_mask, trace.logprobs, trace.spans, trace.messages


def check_against(engine: Engine, traces: dict[int, Trace]) -> None:
    """Every sampled token is the engine's, in the context in which it was sampled, and was sampled once."""
    by_context = {tuple(each["prompt_ids"]): list[dict[str, Any]]() for each in engine.log}
    for each in engine.log:
        by_context[tuple(each["prompt_ids"])].append(each)
    owners = {trace.id: sample for sample, trace in traces.items()}
    for sample, trace in traces.items():
        for turn in range(len(trace.turns)):
            sampled = [span for span in trace.spans if span.turn == turn and span.kind.is_sampled]
            begin, end = sampled[0].start, sampled[-1].end
            context = tuple(trace.prompt_ids + trace.response_ids[:begin])
            is_shared = turn < trace.strategy.shared_turns
            said_by = owners[trace.origin.parent] if is_shared and trace.origin.parent else sample
            (found,) = [each for each in by_context[context] if each["sample"] == said_by]
            assert trace.response_ids[begin:end] == found["token_ids"]
            assert trace.logprobs[begin:end] == found["log_probs"]
            assert trace.loss_mask[begin:end] == [1] * (end - begin)
    generated = sum(len(trace.turns) - trace.strategy.shared_turns for trace in traces.values())
    assert len(engine.log) == generated  # nothing was sampled that no leaf has, and no beginning twice


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


def talker(*, snapshots: bool) -> MCPServer:
    """A user who counts what was said to it, in order and only once; the score is what it counted."""
    server = MCPServer("user", log_level="ERROR")
    heard: dict[str, list[str]] = {}
    numbers: dict[str, int] = {}

    @server.tool(name="reset", meta={ROLE: "reset"}, structured_output=False)
    async def reset(task: str, seed: int, ctx: Context) -> str:
        heard[key(ctx)], numbers[key(ctx)] = [], 0
        return "{}"

    @server.tool(name="start", meta={ROLE: "start"})
    async def start() -> dict[str, Any]:
        return {"message": "Hello."}

    @server.tool(name="reply", meta={ROLE: "reply"})
    async def reply(seq: int, message: str, ctx: Context) -> dict[str, Any]:
        assert seq == numbers[key(ctx)] + 1
        numbers[key(ctx)] = seq
        heard[key(ctx)].append(message)
        return {"message": f"I heard {len(heard[key(ctx)])}.", "done": len(heard[key(ctx)]) == 4}

    @server.tool(name="score", meta={ROLE: "score"})
    async def score(messages: list[dict[str, Any]], ctx: Context) -> dict[str, Any]:
        return {"score": float(len(heard[key(ctx)])), "parts": {}}

    if snapshots:

        @server.tool(name="snapshot", meta={ROLE: "snapshot"})
        async def snapshot(ctx: Context) -> dict[str, Any]:
            return {"state": {"heard": heard[key(ctx)]}}

        @server.tool(name="restore", meta={ROLE: "restore"}, structured_output=False)
        async def restore(state: dict[str, Any], ctx: Context) -> str:
            heard[key(ctx)] = list(state["heard"])
            return "{}"

    return server


@pytest.mark.parametrize("snapshots", [False, True])
async def test_the_user_goes_on_where_the_branch_begins(tmp_path: Path, snapshots: bool) -> None:
    engine = Engine(lambda sample, turn: f"{sample} says {turn}.")
    traces = await grow(
        {"user": talker(snapshots=snapshots)},
        engine,
        tmp_path,
        leaves=4,
        tree={"roots": 1},
        user={"server": "user"},
        reward={"server": "user"},
    )
    check_against(engine, traces)
    for trace in traces.values():
        assert trace.stop_reason is StopReason.USER_DONE, trace.failure
        assert trace.reward is not None and trace.reward.score == 4.0
        assert [turn.user.message for turn in trace.turns if turn.user] == [f"I heard {n}." for n in range(1, 5)]


@pytest.mark.parametrize("fails_at", range(TURNS))
@pytest.mark.parametrize("branch_at", ["uniform", "first_turns"])
async def test_roots_that_fail_release_those_who_wait(tmp_path: Path, fails_at: int, branch_at: str) -> None:
    async def before(sample: int, turn: int) -> None:
        if sample < 2 and turn == fails_at:
            raise EngineError("gone")

    with anyio.fail_after(30):
        traces = await grow(
            {"world": World().server},
            Engine(own, before=before),
            tmp_path,
            leaves=8,
            tree={"roots": 2, "branch_at": branch_at, "first_turns": 1},
            max_sessions=1,
            **SCORED,
        )
    assert [trace.failure.kind for trace in traces.values() if trace.failure] == ["engine_error"] * 2
    for trace in list(traces.values())[2:]:
        assert trace.stop_reason is StopReason.ANSWERED
        has_branched = trace.origin.parent is not None
        assert has_branched or trace.strategy.note == "no root has a turn to branch at"
        # A root that is still running may be branched at before it fails; one that has failed is not.
        assert has_branched is (branch_at == "first_turns" and fails_at > 0)


async def test_one_session_is_enough_for_a_tree(tmp_path: Path) -> None:
    engine = Engine(own)
    with anyio.fail_after(30):
        traces = await grow(
            {"world": World().server}, engine, tmp_path, leaves=8, tree={"roots": 2}, max_sessions=1, **SCORED
        )
    check_against(engine, traces)
    assert sum(trace.origin.parent is not None for trace in traces.values()) == 6


@pytest.mark.parametrize("absent", [(0,), (0, 1)])
async def test_roots_that_never_begin_release_those_who_wait(tmp_path: Path, absent: tuple[int, ...]) -> None:
    with anyio.fail_after(30):
        traces = await grow(
            {"world": World().server},
            Engine(own),
            tmp_path,
            leaves=8,
            tree={"roots": 2},
            absent=absent,
            max_sessions=1,
            **SCORED,
        )
    assert {trace.origin.parent for trace in traces.values() if trace.origin.sample >= 2} == (
        {"leaf-1"} if absent == (0,) else {None}
    )


@pytest.mark.parametrize("turn", [0, 2])
async def test_a_root_that_is_cancelled_releases_those_who_wait(tmp_path: Path, turn: int) -> None:
    scopes: dict[int, anyio.CancelScope] = {}

    async def before(sample: int, now: int) -> None:
        if (sample, now) == (0, turn):
            scopes[0].cancel()
            await anyio.sleep_forever()

    with anyio.fail_after(30):
        traces = await grow(
            {"world": World().server},
            Engine(own, before=before),
            tmp_path,
            leaves=8,
            tree={"roots": 1},
            scopes=scopes,
            max_sessions=1,
            **SCORED,
        )
    assert traces[0].failure is not None and traces[0].failure.kind == "cancelled"
    for trace in list(traces.values())[1:]:
        assert trace.stop_reason is StopReason.ANSWERED and trace.strategy.note == "no root has a turn to branch at"


async def test_a_root_that_runs_out_of_time_is_branched_at_where_it_came_to(tmp_path: Path) -> None:
    async def before(sample: int, turn: int) -> None:
        if (sample, turn) == (0, 2):
            await anyio.sleep_forever()

    limits = Limits(response_tokens=100_000, wall_clock_s=1.0)
    traces = await grow(
        {"world": World().server},
        Engine(own, before=before),
        tmp_path,
        leaves=8,
        tree={"roots": 1},
        limits=limits,
        max_sessions=1,
        **SCORED,
    )
    assert traces[0].stop_reason is StopReason.TIME_LIMIT and len(traces[0].turns) == 2
    assert {trace.strategy.shared_turns for trace in list(traces.values())[1:]} == {1, 2}
    assert all(trace.stop_reason is StopReason.ANSWERED for trace in list(traces.values())[1:])


async def test_a_root_that_is_cut_is_branched_at_all_the_same(tmp_path: Path) -> None:
    limits = Limits(response_tokens=100_000, assistant_turns=2)
    traces = await grow(
        {"world": World().server}, Engine(own), tmp_path, leaves=3, tree={"roots": 1}, limits=limits, **SCORED
    )
    assert {trace.stop_reason for trace in traces.values()} == {StopReason.TURN_LIMIT}
    assert [trace.strategy.shared_turns for trace in traces.values()] == [0, 1, 1]


async def test_roots_of_one_turn_leave_chains(tmp_path: Path) -> None:
    engine = Engine(lambda sample, turn: "Done.")
    traces = await grow({"world": World().server}, engine, tmp_path, leaves=3, tree={"roots": 1}, **SCORED)
    assert [trace.strategy.note for trace in traces.values()] == ["", *["no root has a turn to branch at"] * 2]


async def test_a_branch_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    is_over = anyio.Event()

    async def before(sample: int, turn: int) -> None:
        if sample == 0:
            await is_over.wait()
        elif turn == TURNS - 1:
            is_over.set()

    tree = {"roots": 1, "wait_timeout_s": 0.05}
    traces = await grow({"world": World().server}, Engine(own, before=before), tmp_path, leaves=2, tree=tree, **SCORED)
    assert "within 0.05 s" in traces[1].strategy.note and traces[1].stop_reason is StopReason.ANSWERED
