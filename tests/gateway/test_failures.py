"""Servers that die, hang or never start: whose calls fail, with what, and what is sent again."""

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from breaking import BreakingSse, breaking
from clock import Clock

from mcp_rollout import Gateway, GatewayConfig, GatewayError, Session
from mcp_rollout.gateway.errors import CallTimeout, ConnectTimeout, DeliveryUnknown, ServerUnavailable, WorldLost

pytestmark = pytest.mark.anyio
BREAKING = Path(__file__).with_name("breaking_server.py")
Entry = Callable[..., dict[str, Any]]
Config = Callable[..., GatewayConfig]


def lease(gate: Gateway, trajectory: str = "t") -> Any:
    return gate.lease(trajectory=trajectory, task="task", seed=3)


async def failure_of(session: Session, tool: str, arguments: dict[str, Any] | None = None) -> GatewayError:
    with anyio.fail_after(20), pytest.raises(GatewayError) as caught:
        await session.call(tool, arguments or {})
    return caught.value


async def test_a_server_that_dies_in_a_call_leaves_its_outcome_unknown_and_says_how_it_died(
    mini: Entry, config: Config
) -> None:
    async with Gateway(config(world=mini("die"))) as gate, lease(gate) as session:
        error = await failure_of(session, "die")
    assert type(error) is DeliveryUnknown and error.code == "delivery_unknown"
    assert "world/die: sent, but never answered: the server exited with status 3" in str(error)
    assert "the disk is on fire" in str(error)


async def test_a_killed_server_fails_all_its_calls_at_once_and_nobody_elses(mini: Entry, config: Config) -> None:
    entry = mini("hang", "echo", "pid", scope="process")
    errors: list[GatewayError] = []
    async with Gateway(config(world=entry)) as gate, lease(gate, "a") as one, lease(gate, "b") as other:

        async def hang() -> None:
            errors.append(await failure_of(one, "hang"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hang)
            tasks.start_soon(hang)
            await anyio.wait_all_tasks_blocked()
            # An answer to a later request: the server has read both of the earlier ones.
            pid = int((await one.call("pid", {})).text)
            os.kill(pid, signal.SIGKILL)
        assert (await other.call("echo", {"text": "still here"})).text == "still here"
        late = await failure_of(one, "echo", {"text": "x"})
    assert [type(error) for error in errors] == [WorldLost, WorldLost]
    assert "sent, but never answered" in str(errors[0]) and "killed by SIGKILL" in str(errors[0])
    assert type(late) is WorldLost and "state with it" in str(late)


async def test_the_last_answer_of_a_dying_server_arrives(mini: Entry, config: Config) -> None:
    async with Gateway(config(world=mini("answer_and_die"))) as gate, lease(gate) as session:
        assert (await session.call("answer_and_die", {})).text == "last words"


async def test_a_read_only_call_to_a_stateless_server_is_sent_again(
    mini: Entry, config: Config, tmp_path: Path
) -> None:
    async with Gateway(config(world=mini("die_once"))) as gate, lease(gate) as session:
        assert (await session.call("die_once", {"text": str(tmp_path / "died")})).text == "lived"


@pytest.mark.parametrize("stateful", [{"tools": ["die_once", "reset"]}, {"tools": ["die_once"], "scope": "process"}])
async def test_nothing_is_sent_again_to_a_server_that_forgot_the_trajectory(
    mini: Entry, config: Config, tmp_path: Path, stateful: dict[str, Any]
) -> None:
    entry = mini(*stateful["tools"], scope=stateful.get("scope", "shared"))
    async with Gateway(config(world=entry)) as gate, lease(gate) as session:
        error = await failure_of(session, "die_once", {"text": str(tmp_path / "died")})
    assert type(error) is DeliveryUnknown


async def test_a_shared_server_that_died_is_there_again_for_the_next_lease(mini: Entry, config: Config) -> None:
    async with Gateway(config(world=mini("die", "echo", "reset"))) as gate:
        async with lease(gate, "a") as old:
            await failure_of(old, "die")
            async with lease(gate, "b") as new:
                assert (await new.call("echo", {"text": "back"})).text == "back"
            lost = await failure_of(old, "echo", {"text": "x"})
    assert type(lost) is ServerUnavailable and "its process has ended and this trajectory's state with it" in str(lost)


async def test_a_session_whose_server_only_reads_goes_on_after_it_came_back(mini: Entry, config: Config) -> None:
    async with Gateway(config(world=mini("echo", "pid"))) as gate, lease(gate) as session:
        os.kill(int((await session.call("pid", {})).text), signal.SIGKILL)
        assert (await session.call("echo", {"text": "x"})).text == "x"


async def test_a_session_whose_server_may_have_kept_something_ends_with_its_process(
    mini: Entry, config: Config
) -> None:
    async with Gateway(config(world=mini("die", "put"))) as gate, lease(gate) as session:
        await failure_of(session, "die")
        # `put` was surely not sent, but what earlier calls wrote is gone.
        assert type(await failure_of(session, "put", {"text": "x"})) is ServerUnavailable


async def test_a_server_that_cannot_come_back_fails_every_waiting_lease(
    mini: Entry, config: Config, tmp_path: Path
) -> None:
    script = tmp_path / "server.py"
    script.symlink_to(mini()["args"][2])
    entry = {**mini(), "args": ["-I", "-S", str(script), "die"]}
    async with Gateway(config(world=entry)) as gate:
        async with lease(gate) as session:
            script.unlink()
            await failure_of(session, "die")
        failed: list[str] = []

        async def try_lease() -> None:
            try:
                async with lease(gate):
                    pass
            except ServerUnavailable as error:
                failed.append(str(error))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for _ in range(8):
                    tasks.start_soon(try_lease)
        assert len(failed) == 8 and all("No such file" in text for text in failed)


async def test_a_server_that_never_answers_the_handshake_is_given_up_in_time(mini: Entry, config: Config) -> None:
    with anyio.fail_after(20), pytest.raises(ConnectTimeout) as caught:
        async with Gateway(config(world=mini("mute", start_timeout_s=0.3, close_timeout_s=30))):
            pass
    assert "did not finish its handshake in 0.3 s" in str(caught.value)
    assert sys.executable in str(caught.value) and "raise start_timeout_s" in str(caught.value)


async def test_a_missing_program_is_named(config: Config) -> None:
    with pytest.raises(ServerUnavailable, match="world: cannot start 'no-such-server': no such program"):
        async with Gateway(config(world={"command": "no-such-server", "required": True})):
            pass


async def test_a_server_that_crashes_at_start_is_quoted(mini: Entry, config: Config) -> None:
    with pytest.raises(ServerUnavailable) as caught:
        async with Gateway(config(world=mini("crash"))):
            pass
    assert "exited with status 1" in str(caught.value) and "no module named 'secret_sauce'" in str(caught.value)


async def test_a_server_that_is_not_required_may_be_missing(mini: Entry, config: Config) -> None:
    servers = {"world": mini("echo"), "extra": {"command": "no-such-server"}}
    async with Gateway(config(**servers)) as gate:
        assert list(gate.failures) == ["extra"] and list(gate.catalogue) == ["world"]
        async with lease(gate) as session:
            assert (await session.call("echo", {"text": "fine"})).text == "fine"


async def test_a_stopped_server_with_a_full_pipe_does_not_outwait_the_call(
    mini: Entry, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    entry = mini("echo", "pid", call_timeout_s=60, close_timeout_s=0.2)
    async with Gateway(config(world=entry)) as gate, lease(gate) as session:
        pid = int((await session.call("pid", {})).text)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(CallTimeout):
            await clock.outlast(session.call("echo", {"text": "x" * 1_000_000}), 60)
        os.kill(pid, signal.SIGCONT)


async def test_a_shared_server_that_answers_nothing_any_more_is_replaced(
    mini: Entry, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    entry = mini("pid", call_timeout_s=60, close_timeout_s=0.2)
    async with Gateway(config(world=entry)) as gate:
        async with lease(gate) as session:
            pid = int((await session.call("pid", {})).text)
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(CallTimeout):
                await clock.outlast(session.call("pid", {}), 60)
            connection = session.connection("world")
        await clock.advance(60)  # it was asked whether it still answers
        with anyio.fail_after(50):
            await connection.done.wait()
        async with lease(gate) as session:
            assert int((await session.call("pid", {})).text) != pid


async def test_a_server_that_answers_others_is_not_replaced_for_a_slow_tool(
    mini: Entry, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    async with Gateway(config(world=mini("pid", "hang", "listed", call_timeout_s=60))) as gate:
        async with lease(gate) as session:
            connection, listed = session.connection("world"), int((await session.call("listed", {})).text)
            with pytest.raises(CallTimeout):
                await clock.outlast(session.call("hang", {}), 60)
            with anyio.fail_after(50):
                while int((await session.call("listed", {})).text) == listed:  # asked whether it still answers
                    pass
            assert connection.alive and session.connection("world") is connection


async def test_a_server_that_closes_its_standard_error_goes_on(config: Config, tmp_path: Path) -> None:
    args = ["-I", "-S", str(BREAKING), str(tmp_path / "record"), "put"]
    async with Gateway(config(world={"command": sys.executable, "args": args})) as gate, lease(gate) as session:
        await session.call("put", {"id": "1", "breaks": ["closes its errors"]})
        with anyio.move_on_after(0.5):  # it was once taken for dead 0.2 s later
            await session.connection("world").done.wait()
        assert (await session.call("put", {"id": "2"})).text == "2"


async def test_over_sse_an_event_may_have_several_lines() -> None:
    async with breaking(BreakingSse, "lines", unread=0.0) as server:
        server.plan["x"] = ["several lines"]
        config = GatewayConfig.model_validate({"servers": {"world": {**server.entry, "required": True}}})
        async with Gateway(config) as gate, lease(gate) as session:
            assert (await session.call("put", {"id": "x"})).text == "x"


async def test_leaving_the_gateway_with_an_exception_keeps_it(mini: Entry, config: Config) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with Gateway(config(world=mini("echo"))):
            raise KeyError("mine")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a server only sees the end of its stdin")
def test_servers_die_with_a_worker_that_is_killed(mini: Entry, tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(
        textwrap.dedent("""
        import json, sys, anyio
        from mcp_rollout import Gateway, GatewayConfig

        async def main():
            async with Gateway(GatewayConfig.model_validate(json.loads(sys.argv[1]))) as gate:
                async with gate.lease(trajectory="t", task="", seed=1) as session:
                    print((await session.call("pid", {})).text, flush=True)
                    await anyio.sleep_forever()

        anyio.run(main)
        """)
    )
    # It ignores the end of its stdin, so only the parent-death signal can end it.
    servers = json.dumps({"servers": {"world": mini("pid", "stubborn")}})
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, str(worker), servers], stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        server = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
    ended, _, _ = select.select([server], [], [], 5)
    os.close(server)
    assert ended
