"""What a policy does to a process of its own is an answer that it reads; in a process of others it is a failure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from clock import Clock, made

from mcp_rollout import Gateway, GatewayConfig
from mcp_rollout.gateway.cassette.reading import Cassette
from mcp_rollout.gateway.cassette.recording import Recorder
from mcp_rollout.gateway.cassette.replaying import Replay
from mcp_rollout.gateway.errors import CallTimeout, HarnessError, ProtocolError
from mcp_rollout.gateway.types import CallFault, Role, ToolResult

pytestmark = pytest.mark.anyio
Entry = Callable[..., dict[str, Any]]
Config = Callable[..., GatewayConfig]
LIMIT_S = 60
"""Of a call: the clock is moved past it while a call hangs."""
TIMED_OUT, SERVER_GONE = CallFault.TIMED_OUT, CallFault.SERVER_GONE


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def lease(gate: Gateway, trajectory: str = "t") -> Any:
    return gate.lease(trajectory=trajectory, task="task", seed=3)


@pytest.mark.parametrize("scope", ["process", "session"])
async def test_a_call_that_hangs_a_process_of_its_own_times_out_and_is_sent_once(
    mini: Entry, config: Config, scope: str, clock: Clock
) -> None:
    entry = mini("hang", "get", "pid", scope=scope, call_timeout_s=LIMIT_S)
    async with Gateway(config(world=entry)) as gate:
        async with lease(gate) as session:
            result = await clock.outlast(session.call("hang", {}), LIMIT_S)
            assert (result.is_error, result.fault, result.elapsed_s) == (True, TIMED_OUT, LIMIT_S)
            assert result.text == (
                "hang timed out: no answer within 60 s. It may have taken effect, and may still be running."
            )
            assert (await session.call("get", {})).text == "hung;"
            pid = (await session.call("pid", {})).text
        async with lease(gate, "next") as session:
            assert (await session.call("pid", {})).text != pid


async def test_a_process_that_answers_nothing_after_a_call_is_gone(mini: Entry, config: Config, clock: Clock) -> None:
    entry = mini("freeze", "pid", scope="process", call_timeout_s=LIMIT_S, close_timeout_s=0.5)
    async with Gateway(config(world=entry, other=mini("echo"))) as gate, lease(gate) as session:
        results: list[ToolResult] = [await clock.outlast(session.call("freeze", {}), LIMIT_S)]
        connection = session.connection("world")
        # In flight when the probe of the connection ends it.
        results.append(await clock.outlast(session.call("pid", {}), LIMIT_S))
        with anyio.fail_after(50):
            await connection.done.wait()
        results.append(await session.call("pid", {}))
        assert results[0].fault is TIMED_OUT and results[1].fault in (TIMED_OUT, SERVER_GONE)
        gone = "pid is gone: its server ended after a call that timed out. Its state is lost."
        assert (results[2].fault, results[2].text) == (SERVER_GONE, gone)
        assert (await session.call("echo", {"text": "still here"})).text == "still here"


@pytest.mark.parametrize("tool", ["mix_up", "repeat"])
async def test_a_call_that_hangs_is_a_failure_if_another_one_got_two_different_answers(
    mini: Entry, config: Config, clock: Clock, tmp_path: Path, tool: str
) -> None:
    hung = tmp_path / "hung"
    entry = mini("echo", tool, scope="process", call_timeout_s=LIMIT_S, env={"HANGS": str(hung)})
    async with (
        Gateway(config(world=entry)) as gate,
        lease(gate) as session,
        clock.passing(LIMIT_S, whenever=made(hung)),
    ):
        assert (await session.call("echo", {"text": "first"})).text == "first"
        if tool == "mix_up":
            with pytest.raises(ProtocolError, match="the server gave another call two answers"):
                await session.call("mix_up", {})
        else:
            assert (await session.call("repeat", {})).fault is TIMED_OUT


async def test_a_hang_in_a_process_of_others_is_a_failure(mini: Entry, config: Config, clock: Clock) -> None:
    async with Gateway(config(world=mini("hang", call_timeout_s=LIMIT_S))) as gate, lease(gate) as session:
        with pytest.raises(CallTimeout) as timeout:
            await clock.outlast(session.call("hang", {}), LIMIT_S)
    assert timeout.value.fault is None


async def test_a_hang_in_a_process_that_served_others_before_is_a_failure(
    mini: Entry, config: Config, clock: Clock
) -> None:
    entry = mini("hang", "reset", scope="process", leases_per_process=2, max_processes=1, call_timeout_s=LIMIT_S)
    async with Gateway(config(world=entry)) as gate:
        async with lease(gate, "before"):
            pass
        async with lease(gate) as session:
            with pytest.raises(CallTimeout):
                await clock.outlast(session.call("hang", {}), LIMIT_S)


async def test_a_harness_that_does_not_answer_is_a_failure(mini: Entry, config: Config, clock: Clock) -> None:
    entry = mini("freeze", "score", scope="process", call_timeout_s=LIMIT_S, close_timeout_s=0.5)
    async with Gateway(config(world=entry)) as gate, lease(gate) as session:
        assert (await clock.outlast(session.call("freeze", {}), LIMIT_S)).fault is TIMED_OUT
        with pytest.raises((CallTimeout, HarnessError)):
            await clock.outlast(session.invoke(Role.SCORE, {"messages": []}, server="world"), LIMIT_S)


async def test_a_replay_answers_as_the_process_did(mini: Entry, config: Config, clock: Clock, tmp_path: Path) -> None:
    made = config(world=mini("freeze", "pid", scope="process", call_timeout_s=LIMIT_S, close_timeout_s=0.5))

    async def called(gate: Gateway) -> list[tuple[str, CallFault | None]]:
        async with lease(gate) as session:
            results = [await clock.outlast(session.call(name, {}), LIMIT_S) for name in ("freeze", "pid", "pid")]
        return [(result.text, result.fault) for result in results]

    recorder = Recorder(tmp_path / "a.jsonl")
    async with Gateway(made, name="world", record=recorder) as gate:
        recorded = await called(gate)
    recorder.close()
    replay = Replay(Cassette.read(tmp_path / "a.jsonl"))
    async with Gateway(made, name="world", replay=replay) as gate:
        assert await called(gate) == recorded
