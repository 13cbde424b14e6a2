"""At most once: no call that could do harm twice runs twice, however its server or its connection breaks.

The servers record each execution before its effect, and break as a seeded generator decides, while other calls are in
flight over the same connection.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from breaking import CONNECTION, HTTP_BREAKS, REPEATABLE, SSE_BREAKS, Breaking, BreakingHttp, BreakingSse, breaking
from mcp.client.streamable_http import streamable_http_client
from storm import LANES, Storm, config

from mcp_rollout import Gateway, GatewayError, Session, ToolResult
from mcp_rollout.gateway.errors import DeliveryUnknown, HarnessError, ServerUnavailable
from mcp_rollout.gateway.transport.delivery import Broke, Sent, Verdict, verdict
from mcp_rollout.gateway.types import Role

pytestmark = pytest.mark.anyio
STDIO = Path(__file__).with_name("breaking_server.py")
STDIO_BREAKS = (
    *("dies before", "dies after", "answers and dies", "dies amid", "closes its output"),
    *("closes its errors", "garbage", "garbage answer", "error") * 2,
)


@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("broke", Broke)
@pytest.mark.parametrize("sent", Sent)
def test_the_table_allows_a_second_attempt_only_where_it_cannot_run_a_call_twice(
    sent: Sent, broke: Broke, repeatable: bool
) -> None:
    ran_or_too_late = broke in (Broke.CONTENT, Broke.TIMEOUT)
    surely_not_run = sent is Sent.NOTHING or (sent is Sent.REQUEST and broke in (Broke.SESSION, Broke.REJECTED))
    if ran_or_too_late:
        expected = Verdict.REFUSED
    elif surely_not_run or repeatable:
        expected = Verdict.RESEND
    else:
        expected = Verdict.UNKNOWN
    assert verdict(sent, broke, repeatable=repeatable) is expected


async def storm_over_http(
    kind: type[Breaking], breaks: int, *, seed: str, foreign: bool = False, **entry: Any
) -> Counter[str]:
    """Until the server broke so often. With `foreign`, mcp's own transport is given by `connect=`.

    That one reports nothing about deliveries, and words the faults of HTTP as if the server had answered, so that only
    broken connections are drawn for it. One of them ends all calls in flight, so few are drawn.
    """
    async with breaking(kind, seed, unread=0.0 if foreign else 0.02) as server:

        def plan(call: str, drawn: list[str]) -> dict[str, Any]:
            server.plan[call] = drawn
            return {}

        kinds = CONNECTION if foreign else HTTP_BREAKS if kind is BreakingHttp else SSE_BREAKS
        storm = Storm(seed=seed, kinds=kinds, plan=plan, ended=server.call_over, share=0.1 if foreign else 0.8)
        connect = (lambda config, _: streamable_http_client(config.url)) if foreign else None
        async with Gateway(config(world={**server.entry, **entry}), connect=connect) as gateway:
            await storm.rage(gateway, lambda: server.broken.total() >= breaks)
            if kind is BreakingHttp and not foreign:
                # Breaks meet the calls beside them as well, and a lease's own requests: of this call alone it is sure
                # that no attempt runs.
                server.unread = 0.0
                async with gateway.lease(trajectory="last", task=None, seed=1) as session:
                    await storm.call(session, "put", "refused", ["session ended none"] * 2)
                    assert isinstance(storm.outcomes["refused"][1], ServerUnavailable), storm.outcomes["refused"]
        return storm.check(server.ran)


def stdio_entries(directory: Path, name: str, **options: Any) -> tuple[dict[str, dict[str, Any]], list[Path]]:
    """`world` keeps state with its process; `library` only reads, so a call may be sent to its next process.

    Returns the entries and the files in which executions are recorded.
    """
    entries: dict[str, dict[str, Any]] = {}
    records: list[Path] = []
    for server, tools in {"world": ("put", "assign"), "library": ("look",)}.items():
        records.append(directory / f"{name}-{server}")
        argv = ["-I", "-S", str(STDIO), str(records[-1]), *tools]
        entries[server] = {"command": sys.executable, "args": argv, **options}
    return entries, records


def recorded(records: Sequence[Path]) -> Counter[str]:
    return Counter(itertools.chain.from_iterable(path.read_text().split() for path in records if path.exists()))


async def storm_over_stdio(breaks: int, directory: Path, *, seed: str, scope: str) -> Counter[str]:
    drawn: Counter[str] = Counter()

    def plan(call: str, kinds: list[str]) -> dict[str, Any]:
        drawn.update(kinds[:1])
        return {"breaks": kinds}

    warm = {"min_ready": 2} if scope == "process" else {}
    entries, records = stdio_entries(directory, seed, scope=scope, **warm)
    storm = Storm(seed=seed, kinds=STDIO_BREAKS, plan=plan)
    async with Gateway(config(**entries)) as gateway:
        await storm.rage(gateway, lambda: drawn.total() >= breaks)
        async with gateway.lease(trajectory="last", task=None, seed=1) as session:
            # Breaks meet the calls beside them as well: of this one alone it is sure that its second attempt is left.
            await storm.call(session, "look", "resent", ["dies after"])
    return storm.check(recorded(records))


@pytest.mark.parametrize("scope", ["shared", "session"])
@pytest.mark.parametrize("kind", [BreakingHttp, BreakingSse])
async def test_over_http_and_sse_no_call_runs_twice_that_may_do_harm(kind: type[Breaking], scope: str) -> None:
    found = await storm_over_http(kind, 300, seed=scope, scope=scope)
    assert found["result"] and found["delivery_unknown"] and found["twice, then a result"], found


@asynccontextmanager
async def leased(server: Breaking, **entry: Any) -> AsyncIterator[Session]:
    async with (
        Gateway(config(world={**server.entry, **entry})) as gateway,
        gateway.lease(trajectory="t", task=None, seed=1) as session,
    ):
        yield session


def outcome_of(broke: str, over: str, *, repeatable: bool) -> str:
    """What a call comes to that was alone on its connection when it broke once in this way."""
    answered = broke.endswith((", then late", ", then answered", ", then ended"))
    if answered or broke.startswith("session ended") or broke == "several lines":
        return "result"
    if over == "sse" and broke == "garbage event":  # before the answer
        return "result"
    if over == "http" and broke.startswith("status") and broke.endswith("json-rpc"):
        return "error result"  # which the tool gave
    if over == "http" and broke in ("truncated JSON", "web page", "status 400 refusal", "garbage event"):
        return "protocol_error"
    return "result" if repeatable else "delivery_unknown"


def came_to(outcome: ToolResult | GatewayError) -> str:
    if isinstance(outcome, GatewayError):
        return outcome.code
    return "error result" if outcome.is_error else "result"


async def every_break(kind: type[Breaking], lane: int) -> None:
    """Each break meets a call of each tool, alone on its connection; a lane takes every `LANES`th of them."""
    over, kinds = ("http", HTTP_BREAKS) if kind is BreakingHttp else ("sse", SSE_BREAKS)
    cases = [(broke, tool) for broke in dict.fromkeys(kinds) for tool in ("put", *sorted(REPEATABLE))]
    async with breaking(kind, f"every/{lane}", unread=0.0) as server:

        def plan(call: str, drawn: list[str]) -> dict[str, Any]:
            server.plan[call] = drawn
            return {}

        storm = Storm(seed="every", kinds=(), plan=plan, ended=server.call_over)
        async with Gateway(config(world=server.entry)) as gateway:
            for broke, tool in cases[lane::LANES]:
                async with gateway.lease(trajectory=f"{broke}/{tool}", task=None, seed=1) as session:
                    await storm.call(session, tool, f"{broke}/{tool}", [broke])
        storm.check(server.ran)
    for call, (tool, outcome) in storm.outcomes.items():
        broke = call.rpartition("/")[0]
        expected = {outcome_of(broke, over, repeatable=tool in REPEATABLE)}
        if "unreachable" in broke:  # nothing may listen yet when it is sent again
            expected.add("delivery_unknown")
        elif over == "sse" and broke.startswith("status"):  # the answer to a POST that was served may be faster
            expected.add("result")
        assert came_to(outcome) in expected, f"{call}: {outcome!r}"


@pytest.mark.parametrize("kind", [BreakingHttp, BreakingSse])
async def test_every_way_to_break_runs_no_call_twice_that_may_do_harm(kind: type[Breaking]) -> None:
    async with anyio.create_task_group() as lanes:
        for lane in range(LANES):
            lanes.start_soon(every_break, kind, lane)


@pytest.mark.parametrize("scope", ["shared", "process"])
async def test_every_way_to_break_over_stdio_runs_no_call_twice_that_may_do_harm(scope: str, tmp_path: Path) -> None:
    entries, records = stdio_entries(tmp_path, "every", scope=scope)
    storm = Storm(seed="every", kinds=(), plan=lambda _, kinds: {"breaks": kinds})
    async with Gateway(config(**entries)) as gateway:
        for broke, tool in itertools.product(dict.fromkeys(STDIO_BREAKS), ("put", *sorted(REPEATABLE))):
            async with gateway.lease(trajectory=f"{broke}/{tool}", task=None, seed=1) as session:
                await storm.call(session, tool, f"{broke}/{tool}".replace(" ", "-"), [broke])
    found = storm.check(recorded(records))
    assert found["result"] and found["delivery_unknown"] and found["error result"], found


async def test_over_a_transport_that_reports_no_deliveries_every_call_counts_as_sent() -> None:
    found = await storm_over_http(BreakingHttp, 20, seed="foreign", foreign=True)
    assert found["result"] and found["delivery_unknown"], found


@pytest.mark.parametrize(("scope", "known"), [("shared", True), ("process", True), ("shared", False)])
async def test_over_stdio_no_call_runs_twice_that_may_do_harm(
    scope: str, known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "mcp_rollout.gateway.sdk.is_known", known
    )  # of a release of mcp that is not, the public calls are used
    found = await storm_over_stdio(150, tmp_path, seed=scope, scope=scope)
    assert found["result"] and found["delivery_unknown"], found
    # A process of a trajectory's own takes its state along, and no call is sent to another one.
    assert scope == "process" or found["twice, then a result"], found


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(5))
async def test_ten_thousand_breaks_run_no_call_twice_that_may_do_harm(part: int, tmp_path: Path) -> None:
    for scope in ("shared", "session"):
        for kind, breaks in ((BreakingHttp, 450), (BreakingSse, 300)):
            found = await storm_over_http(kind, breaks, seed=f"{part}/{scope}", scope=scope)
            assert found["twice, then a result"], found
    await storm_over_http(BreakingHttp, 100, seed=f"{part}", foreign=True)
    for scope in ("shared", "process"):
        found = await storm_over_stdio(200, tmp_path, seed=f"{part}-{scope}", scope=scope)
        assert scope == "process" or found["twice, then a result"], found


@pytest.mark.parametrize("numbered", [False, True])
async def test_a_foreign_tool_in_a_role_of_the_harness_is_resent_only_where_its_calls_are_numbered(
    numbered: bool,
) -> None:
    async with breaking(BreakingHttp, "roles", unread=0.0) as server:
        if numbered:
            server.schema["properties"]["seq"] = {"type": "integer"}
        server.plan["x"] = ["status 503 none"]
        async with leased(server, roles={"reply": "put"}) as session:
            try:
                await session.invoke(Role.REPLY, {"id": "x", "seq": 1, "message": "hello"}, server="world")
            except HarnessError:  # both attempts were made, and the answer is not an object
                assert numbered
            except DeliveryUnknown:
                assert not numbered
            else:
                raise AssertionError("its answer is not an object")
        assert server.ran["x"] == (2 if numbered else 1)


async def test_no_call_is_resent_after_its_lease_has_ended() -> None:
    outcomes: list[GatewayError] = []
    async with breaking(BreakingHttp, "late", unread=0.0) as server, Gateway(config(world=server.entry)) as gateway:
        server.plan["x"] = ["status 503 none"]

        async def call(session: Session) -> None:
            with pytest.raises(GatewayError) as caught:
                await session.call("look", {"id": "x"})
            outcomes.append(caught.value)

        async with anyio.create_task_group() as tasks:
            async with gateway.lease(trajectory="t", task=None, seed=1) as session:
                tasks.start_soon(call, session)
                while not server.ran["x"]:
                    await anyio.lowlevel.checkpoint()
            # It broke at the earliest now, and waits before its second attempt.
    assert server.ran["x"] == 1 and type(outcomes[0]) is DeliveryUnknown
    assert "the lease has ended" in str(outcomes[0].__cause__)
