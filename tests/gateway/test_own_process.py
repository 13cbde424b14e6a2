"""What a policy does to a process of its own is an answer that it reads; in a process of others it is a failure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway import Gateway, GatewayConfig
from gateway.cassette.reading import Cassette
from gateway.cassette.recording import Recorder
from gateway.cassette.replaying import Replay
from gateway.errors import CallTimeout, HarnessError
from gateway.types import CallFault, Role, ToolResult

pytestmark = pytest.mark.anyio
Entry = Callable[..., dict[str, Any]]
Config = Callable[..., GatewayConfig]
TIMED_OUT, SERVER_GONE = CallFault.TIMED_OUT, CallFault.SERVER_GONE


def lease(gate: Gateway, trajectory: str = "t") -> Any:
    return gate.lease(trajectory=trajectory, task="task", seed=3)


@pytest.mark.parametrize("scope", ["process", "session"])
async def test_a_call_that_hangs_a_process_of_its_own_times_out_and_is_sent_once(
    mini: Entry, config: Config, scope: str
) -> None:
    entry = mini("hang", "get", "pid", scope=scope, call_timeout_s=0.3)
    async with Gateway(config(world=entry)) as gate:
        async with lease(gate) as session:
            result = await session.call("hang", {})
            assert (result.is_error, result.fault, result.elapsed_s) == (True, TIMED_OUT, 0.3)
            assert result.text == (
                "hang timed out: no answer within 0.3 s. It may have taken effect, and may still be running."
            )
            assert (await session.call("get", {})).text == "hung;"
            pid = (await session.call("pid", {})).text
        async with lease(gate, "next") as session:
            assert (await session.call("pid", {})).text != pid


async def test_a_process_that_answers_nothing_after_a_call_is_gone(mini: Entry, config: Config) -> None:
    entry = mini("freeze", "pid", scope="process", call_timeout_s=0.3, close_timeout_s=0.5)
    async with Gateway(config(world=entry, other=mini("echo"))) as gate, lease(gate) as session:
        results: list[ToolResult] = [await session.call("freeze", {})]
        connection = session.connection("world")
        results.append(await session.call("pid", {}))  # in flight when the probe of the connection ends it
        with anyio.fail_after(10):
            await connection.done.wait()
        results.append(await session.call("pid", {}))
        assert results[0].fault is TIMED_OUT and results[1].fault in (TIMED_OUT, SERVER_GONE)
        gone = "pid is gone: its server ended after a call that timed out. Its state is lost."
        assert (results[2].fault, results[2].text) == (SERVER_GONE, gone)
        assert (await session.call("echo", {"text": "still here"})).text == "still here"


async def test_a_hang_in_a_process_of_others_is_a_failure(mini: Entry, config: Config) -> None:
    async with Gateway(config(world=mini("hang", call_timeout_s=0.3))) as gate, lease(gate) as session:
        with pytest.raises(CallTimeout) as timeout:
            await session.call("hang", {})
    assert timeout.value.fault is None


async def test_a_hang_in_a_process_that_served_others_before_is_a_failure(mini: Entry, config: Config) -> None:
    entry = mini("hang", "reset", scope="process", leases_per_process=2, max_processes=1, call_timeout_s=0.3)
    async with Gateway(config(world=entry)) as gate:
        async with lease(gate, "before"):
            pass
        async with lease(gate) as session:
            with pytest.raises(CallTimeout):
                await session.call("hang", {})


async def test_a_harness_that_does_not_answer_is_a_failure(mini: Entry, config: Config) -> None:
    entry = mini("freeze", "score", scope="process", call_timeout_s=0.3, close_timeout_s=0.5)
    async with Gateway(config(world=entry)) as gate, lease(gate) as session:
        assert (await session.call("freeze", {})).fault is TIMED_OUT
        with pytest.raises((CallTimeout, HarnessError)):
            await session.invoke(Role.SCORE, {"messages": []}, server="world")


async def test_a_replay_answers_as_the_process_did(mini: Entry, config: Config, tmp_path: Path) -> None:
    made = config(world=mini("freeze", "pid", scope="process", call_timeout_s=0.3, close_timeout_s=0.5))

    async def called(gate: Gateway) -> list[tuple[str, CallFault | None]]:
        async with lease(gate) as session:
            results = [await session.call(name, {}) for name in ("freeze", "pid", "pid")]
        return [(result.text, result.fault) for result in results]

    recorder = Recorder(tmp_path / "a.jsonl")
    async with Gateway(made, name="world", record=recorder) as gate:
        recorded = await called(gate)
    recorder.close()
    replay = Replay(Cassette.read(tmp_path / "a.jsonl"))
    async with Gateway(made, name="world", replay=replay) as gate:
        assert await called(gate) == recorded
