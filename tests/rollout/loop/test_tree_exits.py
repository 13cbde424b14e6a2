"""No branch waits for a root that is not there: every way in which a root ends, with a single session for all."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from trees import SCORED, TURNS, Engine, World, check_against, grow, own

from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.trace.record import StopReason

pytestmark = pytest.mark.anyio


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
        assert has_branched or trace.strategy.note == "no root to branch at: 2 engine_error"
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
        assert trace.stop_reason is StopReason.ANSWERED and trace.strategy.note == "no root to branch at: 1 cancelled"


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
