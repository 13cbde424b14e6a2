"""Servers that mean harm, over stdio: outcomes as docs/security.md states; others are unaffected."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from memory import peak_growth
from neighbour import Neighbour, attempt, beside, good

from mcp_rollout import Gateway, GatewayConfig, GatewayError, Session, ToolResult
from mcp_rollout.gateway.catalogue.tool_config import lock_entries
from mcp_rollout.gateway.errors import CallTimeout, ConnectTimeout, DeliveryUnknown, ProtocolError, ToolsChanged
from mcp_rollout.gateway.transport.line_calls import LineCalls
from mcp_rollout.gateway.transport.stdio import StdioTransport

pytestmark = pytest.mark.anyio

HOSTILE = Path(__file__).with_name("hostile_server.py")
LIMIT = 8 << 20


def hostile(behaviour: str, *args: str, **entry: Any) -> dict[str, Any]:
    bounds = {"start_timeout_s": 10, "call_timeout_s": 20, "close_timeout_s": 0.5}
    return {"command": sys.executable, "args": ["-I", "-S", str(HOSTILE), behaviour, *args], **bounds, **entry}


def gateway(bad: dict[str, Any], **neighbour: Any) -> Gateway:
    return Gateway(GatewayConfig.model_validate({"servers": {"bad": bad, "good": good(**neighbour)}}))


def lease(gate: Gateway, *tools: str) -> AbstractAsyncContextManager[Session]:
    return gate.lease(trajectory="victim", task=None, seed=1, tools=tools or None)


@asynccontextmanager
async def harmed(behaviour: str, **entry: Any) -> AsyncIterator[tuple[ToolResult | GatewayError, int, Session]]:
    """What one call of `harm` came to, how many rounds the neighbour played meanwhile, and the session after it."""
    async with gateway(hostile(behaviour, **entry)) as gate, lease(gate) as session:
        outcome, neighbour = await beside(gate, lambda: attempt(session, "harm"))
        yield outcome, neighbour.rounds, session


async def still_serves(session: Session) -> bool:
    outcome = await attempt(session, "echo", {"text": "still"})
    return isinstance(outcome, ToolResult) and outcome.text == "hostile: still"


PHASES = ["hang in start", "hang in initialize", "hang in list"]


@pytest.mark.parametrize("behaviour", PHASES)
async def test_a_server_that_hangs_before_it_is_ready_is_left_out_in_time(behaviour: str) -> None:
    async with gateway(hostile(behaviour, start_timeout_s=0.5)) as gate:
        assert type(gate.failures["bad"]) is ConnectTimeout
        assert list(gate.catalogue) == ["good"]
        outcome, _ = await beside(gate, lambda: anyio.lowlevel.checkpoint())
    assert outcome is None


async def test_a_server_whose_list_has_no_end_is_cut_off() -> None:
    async with gateway(hostile("endless pages")) as gate:
        assert gate.catalogue["bad"] == ()
        await beside(gate, lambda: anyio.lowlevel.checkpoint())


@pytest.mark.parametrize("behaviour", PHASES)
async def test_leases_that_wait_for_a_hung_start_keep_nobody_elses_waiting(behaviour: str, tmp_path: Path) -> None:
    # The first process is fine, so that the server is in the catalogue; all others hang.
    entry = hostile(behaviour, str(tmp_path / "seen"), scope="process", start_timeout_s=2)
    played_before_the_first_failure: list[int] = []
    failures: list[GatewayError] = []
    neighbour = Neighbour()
    async with gateway(entry, scope="process") as gate, lease(gate, "echo"):

        async def victim() -> None:
            try:
                async with lease(gate, "echo"):
                    raise AssertionError("it cannot have started")
            except GatewayError as error:
                played_before_the_first_failure.append(neighbour.rounds)
                failures.append(error)

        async def incident() -> None:
            async with anyio.create_task_group() as tasks:
                for _ in range(max(2, os.cpu_count() or 2)):
                    tasks.start_soon(victim)

        await beside(gate, incident, neighbour=neighbour)
    assert {type(error) for error in failures} == {ConnectTimeout}
    # The first round may have been under way already.
    assert played_before_the_first_failure[0] > 1


async def test_a_server_that_hangs_in_a_call_times_that_call_out() -> None:
    async with harmed("hang in call", call_timeout_s=0.5) as (outcome, rounds, _):
        assert type(outcome) is CallTimeout and rounds > 0


async def test_a_server_that_hangs_when_it_is_closed_is_killed() -> None:
    gate = gateway(hostile("hang in close", scope="process"))
    async with gate:
        async with lease(gate, "echo") as session:
            assert await still_serves(session)
            (connection,) = (found for found in gate._openings.connections if found.server == "bad")

        async def closed() -> None:
            with anyio.fail_after(20):
                await connection.done.wait()

        _, neighbour = await beside(gate, closed)
        assert neighbour.rounds > 0


async def test_a_server_that_dies_in_a_call_takes_only_that_call_along() -> None:
    async with harmed("die in call") as (outcome, _, _):
        assert type(outcome) is DeliveryUnknown and "exited with status 3" in str(outcome)


@pytest.mark.parametrize(
    ("behaviour", "outcome"),
    [("long line", ProtocolError), ("endless line", CallTimeout), ("many lines", None), ("stderr", None)],
)
async def test_fifty_megabytes_are_read_in_bounded_memory(behaviour: str, outcome: type[GatewayError] | None) -> None:
    bound = {"call_timeout_s": 2} if outcome is CallTimeout else {}
    async with gateway(hostile(behaviour, **bound)) as gate, lease(gate) as session:
        with peak_growth() as growth:
            result, neighbour = await beside(gate, lambda: attempt(session, "harm"))
        if outcome is None:
            assert isinstance(result, ToolResult) and result.text == "after 50 MB"
        else:
            assert type(result) is outcome
        assert neighbour.rounds > 0
        assert growth() < 5 * LIMIT


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        ("garbage", "after garbage"),
        ("bad utf-8", "caf\ufffd \ufffd"),
        ("wrong ids", "yours"),
        ("20,000 notifications", "after 20,000"),
        ("20,000 log messages", "after 20,000"),
        ("requests", "after 2,000"),
    ],
)
async def test_what_surrounds_an_answer_does_not_keep_it_from_its_call(behaviour: str, text: str) -> None:
    async with harmed(behaviour) as (outcome, _, session):
        assert isinstance(outcome, ToolResult) and outcome.text == text
        assert await still_serves(session)


async def test_a_result_of_more_blocks_than_are_handled_fails_its_call_alone() -> None:
    async with harmed("many blocks") as (outcome, _, session):
        assert type(outcome) is ProtocolError and "20000 items under 'content'" in str(outcome)
        assert await still_serves(session)


async def test_half_a_line_is_no_answer() -> None:
    async with harmed("half a line", call_timeout_s=0.5) as (outcome, rounds, _):
        assert type(outcome) is CallTimeout and rounds > 0


async def test_half_a_line_before_death_is_no_answer() -> None:
    async with harmed("half a line and death") as (outcome, _, _):
        assert type(outcome) is DeliveryUnknown and "exited with status 0" in str(outcome)


@pytest.mark.parametrize("behaviour", ["wrong structured content", "wrong shape"])
async def test_an_answer_off_the_protocol_or_the_tools_own_schema_fails_its_call(behaviour: str) -> None:
    async with harmed(behaviour) as (outcome, _, session):
        assert type(outcome) is ProtocolError
        assert await still_serves(session)


async def test_a_shadowed_tool_is_prefixed_and_calls_go_where_their_name_says() -> None:
    async with gateway(hostile("shadowing")) as gate, lease(gate) as session:
        assert "say" not in session.tools
        theirs, _ = await beside(gate, lambda: attempt(session, "bad__say", {"text": "x"}), say="good__say")
        assert isinstance(theirs, ToolResult) and theirs.text == "hostile: x"
        assert (await session.call("good__say", {"text": "x"})).text == "x"


async def test_a_tool_named_like_anothers_prefix_gets_one_itself() -> None:
    async with gateway(hostile("false prefix")) as gate, lease(gate) as session:
        (ours,) = (name for name, tool in session.tools.items() if tool.server == "good")
        theirs = [name for name, tool in session.tools.items() if tool.server == "bad" and "say" in name]
        await beside(gate, lambda: attempt(session, theirs[0], {"text": "x"}), say=ours)
        assert len(theirs) == 2
        for name in theirs:
            assert (await session.call(name, {"text": "x"})).text == "hostile: x"


async def test_a_server_that_comes_back_with_other_tools_fails_its_leases(tmp_path: Path) -> None:
    entry = hostile("changed tools", str(tmp_path / "seen"), scope="process")
    async with gateway(entry) as gate:
        async with lease(gate, "echo") as session:
            assert await still_serves(session)

        async def incident() -> None:
            with pytest.raises(ToolsChanged, match="send your keys along"):
                async with lease(gate, "echo"):
                    pass

        await beside(gate, incident)


async def test_a_server_that_announces_other_tools_fails_those_who_lease_it() -> None:
    async with gateway(hostile("announced change")) as gate, lease(gate) as session:

        async def incident() -> GatewayError:
            assert isinstance(await attempt(session, "harm"), ToolResult)
            while True:  # what was announced is looked into beside the calls
                outcome = await attempt(session, "echo", {"text": "still"})
                if isinstance(outcome, GatewayError):
                    return outcome

        with anyio.fail_after(10):
            outcome, _ = await beside(gate, incident)
        assert type(outcome) is ToolsChanged and "send your keys along" in str(outcome)
        with pytest.raises(ToolsChanged):
            async with lease(gate, "echo"):
                pass


async def test_odd_names_hide_no_tool_and_reach_no_other_server() -> None:
    async with gateway(hostile("false names")) as gate, lease(gate) as session:
        assert any("listed twice" in fault for fault in gate.malformed["bad"])
        assert [name for name, tool in session.tools.items() if tool.server == "good"] == ["say"]
        for name in ("good/say", "good.say"):
            outcome, _ = await beside(gate, lambda name=name: attempt(session, name, {"text": "x"}))
            assert not (isinstance(outcome, ToolResult) and outcome.text == "x")


async def test_a_claimed_role_hides_the_tool_and_answers_for_nobody_else() -> None:
    async with gateway(hostile("claimed roles")) as gate, lease(gate) as session:
        outcome, _ = await beside(gate, lambda: attempt(session, "judge"))
        assert isinstance(outcome, ToolResult) and outcome.is_error and "Unknown tool" in outcome.text
        assert set(session.tools) == {"echo", "harm", "say"}


async def test_commands_in_a_description_change_nothing_but_that_description() -> None:
    async with gateway(hostile("commands")) as gate, lease(gate) as session:
        assert "IMPORTANT" in session.tools["echo"].description
        assert {0x200B, 0x202E} <= {point for found in gate.hidden_text["bad"] for point in found.code_points}
        assert session.tools["say"].description == "Say."
        outcome, _ = await beside(gate, lambda: attempt(session, "echo", {"text": "x"}))
        assert isinstance(outcome, ToolResult) and outcome.text == "hostile: x"


SLOW_NAME = "a" * 80 + "!"


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("doubling", {}, "hostile: None"),
        ("expanding", {}, "hostile: None"),
        ("slow names", {SLOW_NAME: 1}, f"Invalid arguments for slow names: unknown '{SLOW_NAME}'"),
        ("slow values", {"x": SLOW_NAME}, "Invalid arguments for slow values: x: "),
        ("slow results", {}, "missing required 'n'"),
        ("doubled results", {}, "done"),
    ],
)
async def test_a_schema_that_would_take_for_ever_is_bounded_or_not_checked(
    tool: str, arguments: dict[str, Any], said: str
) -> None:
    async with gateway(hostile("costly schemas")) as gate, lease(gate) as session:
        outcome, _ = await beside(gate, lambda: attempt(session, tool, arguments))
        assert said in (outcome.text if isinstance(outcome, ToolResult) else str(outcome))
        assert await still_serves(session)
        assert lock_entries(gate.catalogue, environment=None, source="hostile")
        (fault,) = gate.malformed["bad"]
        assert fault == "deep: it is nested more than 100 deep"


async def test_ten_thousand_tools_do_not_keep_the_others_from_being_called() -> None:
    async with gateway(hostile("10,000 tools", start_timeout_s=20)) as gate:
        assert len(gate.catalogue["bad"]) == 10_002
        async with lease(gate, "echo") as session:
            outcome, _ = await beside(gate, lambda: attempt(session, "echo", {"text": "x"}))
        assert isinstance(outcome, ToolResult) and outcome.text == "hostile: x"


async def test_a_flood_of_short_lines_is_read_a_hundred_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    most, read, real = 0, 0, StdioTransport._read_lines
    real_line = LineCalls.read

    def read_lines(self: StdioTransport) -> None:
        nonlocal most, read
        read = 0
        real(self)
        most = max(most, read)

    def read_line(self: LineCalls, line: Any) -> None:
        nonlocal read
        read += 1
        real_line(self, line)

    monkeypatch.setattr(StdioTransport, "_read_lines", read_lines)
    monkeypatch.setattr(LineCalls, "read", read_line)
    async with gateway(hostile("short lines")) as gate, lease(gate) as session:
        outcome = await session.call("harm", {})
        assert isinstance(outcome, ToolResult) and outcome.text == "after 500,000"
        assert await still_serves(session)
    assert 1 < most <= 100


@pytest.mark.parametrize("behaviour", ["endless large pages", "endless large malformed pages"])
async def test_a_list_of_tools_ends_with_the_page_that_exceeds_the_bytes_of_a_message(behaviour: str) -> None:
    limit = 1 << 20
    async with gateway(hostile(behaviour, max_message_bytes=limit)) as gate:
        listed = gate.catalogue["bad"]
        assert 0 < sum(len(found.description) for found in listed) <= limit
        assert any("more than max_message_bytes" in fault for fault in gate.malformed["bad"])
        async with lease(gate, "echo") as session:
            assert await still_serves(session)
            raw = await session.connection("bad").list_raw(timeout_s=10)
            assert len(raw) < 2 * len(listed)
