"""A policy that hangs a server of its own is scored for it; one that meets a hung server of others is withdrawn."""

import sys
from pathlib import Path
from typing import Any

import pytest
from clock import Clock, made
from worlds import saying, task

from mcp_rollout import Gateway
from mcp_rollout.gateway.types import CallFault
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.tokens.chatml import ByteTokens
from mcp_rollout.rollout.trace.events import MarkKind
from mcp_rollout.rollout.trace.record import Origin, StopReason, Trace
from mcp_rollout.rollout.trace.store import TraceStore, read_traces
from mcp_rollout.rollout.types import Call

pytestmark = pytest.mark.anyio
LIMIT_S = 60
MINI = Path(__file__).parents[2] / "gateway" / "mini_server.py"


def entry(*tools: str, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", "-S", str(MINI), *tools], "required": True, **more}


def calling(*names: str) -> str:
    return hermes.write(calls=[Call(name=name, arguments={}) for name in names])


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def played(
    clock: Clock, directory: Path, world: dict[str, Any], *texts: str, judge: str = "judge", **row: Any
) -> Trace:
    """With a clock that moves to the end of a call once it hangs."""
    hung = directory / "hung"
    world |= {"call_timeout_s": LIMIT_S, "env": {"HANGS": str(hung)}}
    servers = {"world": world, "judge": entry("score")}
    environment = Environment.model_validate(
        {"name": "test", "servers": servers, "reward": {"server": judge, "parts": ["found"]}}
    )
    async with Gateway(environment) as gateway, clock.passing(LIMIT_S, whenever=made(hung)):
        return await roll_out(
            Trace.begin("trajectory", task(**row), Origin()),
            environment=environment,
            gateway=gateway,
            policy_for=saying(*texts),
            tokens=ByteTokens(),
            limits=Limits(response_tokens=20_000),
            store=TraceStore(directory / "traces"),
        )


async def test_a_policy_that_hangs_its_own_server_reads_so_goes_on_and_is_scored(clock: Clock, tmp_path: Path) -> None:
    world = entry("hang", "get", scope="process")
    trace = await played(clock, tmp_path, world, calling("hang"), calling("get"), "It hangs.")
    assert trace.reward is not None and trace.reward.score == 0.25
    assert (trace.stop_reason, trace.failure) == (StopReason.ANSWERED, None)
    assert [(mark.kind, mark.detail) for mark in trace.turns[0].marks] == [(MarkKind.TIMED_OUT, "hang")]
    hang, get = [event for turn in trace.turns for event in turn.tools]
    assert "hang timed out: no answer within 60 s" in trace.messages[2]["content"]
    assert (hang.server, hang.resends, hang.elapsed_s) == ("world", 0, LIMIT_S)
    assert get.text == "hung;"
    (stored,) = read_traces(tmp_path / "traces")
    assert stored.turns == trace.turns


async def test_a_policy_that_meets_a_hung_server_of_others_is_withdrawn(clock: Clock, tmp_path: Path) -> None:
    trace = await played(clock, tmp_path, entry("hang"), calling("hang"), "It hangs.")
    assert trace.is_withdrawn and trace.failure is not None and trace.failure.kind == "call_timeout"


async def test_a_policy_that_hangs_the_server_that_scores_it_is_withdrawn(clock: Clock, tmp_path: Path) -> None:
    world = entry("freeze", "score", scope="process", close_timeout_s=0.5)
    trace = await played(clock, tmp_path, world, calling("freeze"), "It hangs.", judge="world")
    assert trace.turns[0].marks[0].kind is MarkKind.TIMED_OUT
    assert trace.is_withdrawn and trace.failure is not None


async def test_a_check_in_a_process_that_the_policy_hung_does_not_hold(clock: Clock, tmp_path: Path) -> None:
    world = entry("freeze", "get", scope="process", close_timeout_s=0.5)
    trace = await played(clock, tmp_path, world, calling("freeze"), "It hangs.", check=[{"name": "get"}])
    assert trace.failure is None and trace.reward is not None and trace.reward.score == 0.25
    assert [(each.holds, each.call.fault) for each in trace.checks] == [(False, CallFault.TIMED_OUT)]
    other = entry("freeze", "get", close_timeout_s=0.5)
    (tmp_path / "other").mkdir()
    trace = await played(clock, tmp_path / "other", other, calling("get"), "Fine.", check=[{"name": "freeze"}])
    assert trace.is_withdrawn and trace.failure is not None and trace.failure.kind == "call_timeout"
