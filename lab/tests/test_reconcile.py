"""A slice of `lab.benchmarks.reconcile`: trajectories under faults, held against the log and a run without faults."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import mcp_rollout

from lab.benchmarks.faults.plan import Fault
from lab.benchmarks.reconcile.drive import Settings, play
from lab.benchmarks.reconcile.engine import VARIABLE
from lab.benchmarks.reconcile.plan import Inside, Storm
from lab.benchmarks.reconcile.reconcile import Found, reconcile
from mcp_rollout.gateway.connection import failures
from mcp_rollout.gateway.connection.deadline import Deadline
from mcp_rollout.gateway.connection.in_flight import OutgoingCall
from mcp_rollout.gateway.errors import ConfigError, GatewayError
from mcp_rollout.gateway.leases.pool import BundlePool
from mcp_rollout.gateway.leases.sending import Sending
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.leases.taking import Bundle
from mcp_rollout.gateway.transport import http_calls
from mcp_rollout.gateway.transport.delivery import Broke, Delivery, Sent, Verdict, verdict
from mcp_rollout.gateway.types import ToolResult
from mcp_rollout.rollout.errors import AgentError
from mcp_rollout.rollout.evaluation import summary
from mcp_rollout.rollout.evaluation.resume import is_done
from mcp_rollout.rollout.loop.turns import Turns
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.types import Parsed

SETTINGS = Settings(concurrency=8, call_timeout_s=6, wall_clock_s=15, rounds=12)
SEED = "1"
CALM: dict[str, Any] = {"kinds": (), "inside": ()}
BREAKS: dict[str, Any] = {"kinds": (Fault.BEFORE, Fault.AFTER), "inside": ()}
READ_ONLY: dict[str, Any] = {"kinds": (), "inside": (Inside.READ_ONLY,), "inside_share": 0.5}
SLICE = Storm(seed=SEED, rows=6, lanes=("http", "sse", "fork"), inside=(Inside.REFUSES, Inside.ABORTS, Inside.CLOCK))


def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[str]], int]:
    """Runs commands in this process."""

    def run(given: Sequence[str]) -> int:
        monkeypatch.setenv(VARIABLE, str(folder))
        try:
            return mcp_rollout(*given).status
        except asyncio.CancelledError:  # what a defect can do to it
            return 1

    return run


def stormed(
    storm: Storm, home: Path, monkeypatch: pytest.MonkeyPatch, calm: Path | None, settings: Settings = SETTINGS
) -> Found:
    folder = home / "storm"
    folder.mkdir()
    play(storm, folder, settings, here(folder, monkeypatch))
    return reconcile(folder, calm)


def calmed(storm: Storm, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the run without faults."""
    folder = home / "calm"
    folder.mkdir()
    play(storm.calm, folder, SETTINGS, here(folder, monkeypatch))
    return folder


def test_trajectories_under_faults_are_reconciled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = stormed(SLICE, tmp_path, monkeypatch, calmed(SLICE, tmp_path, monkeypatch))
    only = " ".join(f"--only {lane}" for lane in SLICE.lanes)
    again = f"python -m lab.benchmarks.reconcile --seed {SEED} --rows {SLICE.rows} --kills 0 {only}"
    assert not found.discrepancies, "\n".join([again, *found.discrepancies])
    assert sum(found.faults.values()) > 10 and found.untouched > 5, dataclasses.asdict(found)


def test_impossible_ids_of_an_engine_end_their_own_trajectory_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm = Storm(seed=SEED, rows=4, lanes=("http",), kinds=(), inside=(Inside.IDS,), inside_share=0.5)
    found = stormed(storm, tmp_path, monkeypatch, None)
    assert not found.discrepancies, "\n".join(found.discrepancies)
    assert found.withdrawn == sum(found.faults.values()) > 0, dataclasses.asdict(found)


@pytest.mark.full
def test_a_trace_store_that_turns_read_only_ends_the_run_which_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm = Storm(seed=SEED, rows=8, lanes=("http",), **READ_ONLY)
    few = dataclasses.replace(SETTINGS, concurrency=2)  # so that some play when the first trace was written
    found = stormed(storm, tmp_path, monkeypatch, None, few)
    assert not found.discrepancies, "\n".join(found.discrepancies)
    assert found.lost > 0 < sum(found.faults.values()), dataclasses.asdict(found)


@pytest.mark.full
def test_processes_are_killed_and_all_is_reconciled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storm = Storm(seed=SEED, rows=4, kills=6, changes=1)
    calm = calmed(storm, tmp_path, monkeypatch)
    (tmp_path / "storm").mkdir()
    play(storm, tmp_path / "storm", SETTINGS)
    found = reconcile(tmp_path / "storm", calm)
    assert not found.discrepancies, "\n".join(found.discrepancies)
    assert found.killed, dataclasses.asdict(found)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A defect of the product, a storm in which it matters, and what the reconciliation then reports."""

    apply: Callable[[pytest.MonkeyPatch], None]
    storm: dict[str, Any]
    found: str


def inverts_the_retry_rule(patched: pytest.MonkeyPatch) -> None:
    def inverted(sent: Sent, broke: Broke, *, repeatable: bool) -> Verdict:
        known = verdict(sent, broke, repeatable=repeatable)
        return {Verdict.UNKNOWN: Verdict.RESEND, Verdict.RESEND: Verdict.UNKNOWN}.get(known, known)

    patched.setattr(failures, "verdict", inverted)


def leaves_a_release_out(patched: pytest.MonkeyPatch) -> None:
    release, numbers = Session.release, itertools.count()

    async def sometimes(session: Session) -> None:
        if next(numbers) % 3:
            await release(session)

    patched.setattr(Session, "release", sometimes)


def loses_a_trace_line(patched: pytest.MonkeyPatch) -> None:
    write, numbers = TraceStore.write, itertools.count()

    async def sometimes(store: TraceStore, trace: Trace) -> None:
        if next(numbers) % 3:
            await write(store, trace)

    patched.setattr(TraceStore, "write", sometimes)


def hides_that_traces_cannot_be_written(patched: pytest.MonkeyPatch) -> None:
    write = TraceStore.write

    async def hiding(store: TraceStore, trace: Trace) -> None:
        with contextlib.suppress(ConfigError):
            await write(store, trace)

    patched.setattr(TraceStore, "write", hiding)


def leaks_a_descriptor(patched: pytest.MonkeyPatch) -> None:
    release = Session.release

    async def leaking(session: Session) -> None:
        os.dup(0)
        await release(session)

    patched.setattr(Session, "release", leaking)


def gives_a_lease_to_two(patched: pytest.MonkeyPatch) -> None:
    take, given = BundlePool.take, list[Bundle]()

    async def twice(pool: BundlePool, **wanted: Any) -> Bundle:
        if len(in_use := [bundle for bundle in given if bundle.alive]) > 1:
            return in_use[-1]
        given.append(await take(pool, **wanted))
        return given[-1]

    patched.setattr(BundlePool, "take_ready", lambda *_, **__: None)
    patched.setattr(BundlePool, "take", twice)


def cancels_no_deadline(patched: pytest.MonkeyPatch) -> None:
    leave = Deadline.__exit__

    def left(deadline: Deadline, *exception: Any) -> bool:
        asyncio.get_running_loop().call_later(0.02, deadline.expire)
        return leave(deadline, *exception)

    patched.setattr(Deadline, "__exit__", left)


def follows_a_redirect_twice(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(Delivery, "may_follow", lambda *_: True)


def takes_the_answer_of_another_call(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(http_calls, "answers", lambda *_: True)


def withdraws_what_the_policy_caused(patched: pytest.MonkeyPatch) -> None:
    generate = Turns.generate

    async def strict(turns: Turns, **given: Any) -> Parsed:
        parsed = await generate(turns, **given)
        if any(call.problem for call in parsed.calls):
            raise AgentError("a call cannot be read")
        return parsed

    patched.setattr(Turns, "generate", strict)


def plays_again_what_is_done(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(summary, "is_done", lambda trace: is_done(trace) and not trace.task.task.endswith("-0"))


def tells_the_policy_that_a_call_broke(patched: pytest.MonkeyPatch) -> None:
    send = Sending.send

    async def told(sending: Sending, call: OutgoingCall) -> ToolResult:
        try:
            return await send(sending, call)
        except GatewayError as error:
            if call.tool.role is not None:
                raise
            return ToolResult.error(str(error))

    patched.setattr(Sending, "send", told)


PLANTED = [
    Planted(apply=inverts_the_retry_rule, storm=BREAKS, found="ran 2 times"),
    Planted(apply=leaves_a_release_out, storm=CALM, found="not released"),
    Planted(apply=loses_a_trace_line, storm=CALM, found="no trace, and its process was not ended"),
    Planted(apply=hides_that_traces_cannot_be_written, storm=READ_ONLY, found="its process was not ended"),
    Planted(apply=leaks_a_descriptor, storm=CALM, found="descriptors left"),
    Planted(apply=gives_a_lease_to_two, storm=CALM, found="shared by"),
    Planted(apply=cancels_no_deadline, storm=CALM, found="0 traces with a reward"),
    Planted(apply=follows_a_redirect_twice, storm={"kinds": (Fault.MOVED,), "inside": ()}, found="redirects"),
    Planted(apply=takes_the_answer_of_another_call, storm={"kinds": (Fault.TWICE,), "inside": ()}, found="returned"),
    Planted(apply=withdraws_what_the_policy_caused, storm=CALM, found="withdrawn without a fault"),
    Planted(apply=plays_again_what_is_done, storm=BREAKS, found="traces with a reward"),
    Planted(apply=tells_the_policy_that_a_call_broke, storm=BREAKS, found="an error that its world did not give"),
]


@pytest.mark.full
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.apply.__name__)
def test_a_planted_defect_is_found(planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storm = Storm(seed=SEED, rows=8, lanes=("http",), share=0.1, **planted.storm)
    before = set(map(int, os.listdir("/proc/self/fd")))
    with pytest.MonkeyPatch.context() as patched:
        planted.apply(patched)
        found = stormed(storm, tmp_path, monkeypatch, None, dataclasses.replace(SETTINGS, rounds=3, concurrency=3))
    gc.collect()  # a store that is still to be deleted closes its journal itself
    for descriptor in set(map(int, os.listdir("/proc/self/fd"))) - before:
        with contextlib.suppress(OSError):  # one of them listed the directory
            os.close(descriptor)
    assert any(planted.found in problem for problem in found.discrepancies), found.discrepancies
