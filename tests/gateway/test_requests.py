"""What servers ask for within calls, and what they say by the way: real servers of both eras, over every transport."""

import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from clock import Clock
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve, Sample
from mcp_types import CreateMessageResult, SamplingMessage, TextContent
from pydantic import BaseModel
from serving import Model, listening, serving
from starlette.responses import Response
from structlog.testing import capture_logs

from mcp_rollout import ConfigError, Gateway, GatewayConfig, Session, ToolResult
from mcp_rollout.gateway.config.calls import SamplingConfig
from mcp_rollout.gateway.connection.answerers import Sampler
from mcp_rollout.gateway.connection.in_flight import InFlightCall, Refused
from mcp_rollout.gateway.errors import CallTimeout, DeliveryUnknown, RequestRefused
from mcp_rollout.gateway.server_events import NotificationKind, RequestKind, ServerEvents
from mcp_rollout.mcp_servers.kit import InProcess
from mcp_rollout.mcp_wire.chat_api import ApiError, Completion, parsed

pytestmark = [
    pytest.mark.anyio,
    # The protocol of 2026 keeps log messages and sampling on notice; servers will send them for years.
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

OLD = Path(__file__).parents[1] / "support" / "old_server.py"
TRANSPORTS = ("in_process", "in_lines", "http", "http-handshake", "sse", "sse-handshake", "stdio-handshake")


class Amount(BaseModel):
    n: int


async def ask_amount() -> Elicit[Amount]:
    return Elicit("How many?", Amount)


async def ask_model(text: str) -> Sample:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=text))
    return Sample([message], max_tokens=50, system_prompt="Be loud.")


def shop() -> MCPServer:
    server = MCPServer("shop", log_level="ERROR")

    @server.tool(structured_output=False)
    async def order(item: str, amount: Annotated[Amount, Resolve(ask_amount)]) -> str:
        """Order."""
        return f"{amount.n} x {item}"

    @server.tool(structured_output=False)
    async def summarize(text: str, said: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
        """Summarize."""
        assert isinstance(said.content, TextContent)
        return said.content.text

    @server.tool(structured_output=False)
    async def count(to: int, ctx: Context) -> str:
        """Count."""
        for number in range(to):
            await ctx.info(f"at {number}")  # pyright: ignore[reportDeprecated]
            await ctx.debug("too fine")  # pyright: ignore[reportDeprecated]
            await ctx.report_progress(number, to, "on the way")
        return "counted"

    return server


def customer(answer: dict[str, Any], asked: list[dict[str, Any]]) -> MCPServer:
    server = MCPServer("customer", log_level="ERROR")

    @server.tool(meta={"mcp-rollout/role": "elicit"})
    async def elicit(seq: int, message: str, schema: dict[str, Any], server: str, tool: str) -> dict[str, Any]:
        asked.append({"seq": seq, "message": message, "schema": schema, "server": server, "tool": tool})
        return answer

    return server


@asynccontextmanager
async def leased(
    transport: str, *, servers: dict[str, MCPServer] | None = None, **bounds: Any
) -> AsyncIterator[Session]:
    """A session with `shop` over a transport, and `servers` in process."""
    in_process = transport in ("in_process", "in_lines")
    local = {"shop": shop(), **(servers or {})} if in_process else (servers or {})
    unused = {"factory": "unused:unused", "required": True, "call_timeout_s": 600}
    entries: dict[str, Any] = dict.fromkeys(local, unused)

    def connect(_: Any, name: str) -> Any:
        found = local.get(name)
        return InProcess(found) if transport == "in_lines" and found is not None else found

    @asynccontextmanager
    async def entry() -> AsyncIterator[dict[str, Any]]:
        if in_process:
            yield entries["shop"]
        elif transport == "stdio-handshake":
            yield {"command": sys.executable, "args": ["-I", "-S", str(OLD), "2025-11-25"], "required": True}
        else:
            async with serving(shop(), transport) as found:
                yield found

    async with entry() as found:
        more = bounds.pop("entry", {})
        config = GatewayConfig.model_validate({"servers": {**entries, "shop": {**found, **more}}, **bounds})
        async with (
            Gateway(config, connect=connect) as gateway,
            gateway.lease(trajectory="t", task=None, seed=1) as session,
        ):
            yield session


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_question_within_a_call_is_answered_by_the_elicit_tool(transport: str) -> None:
    asked: list[dict[str, Any]] = []
    simulator = customer({"action": "accept", "content": {"n": 7}}, asked)
    async with leased(transport, servers={"customer": simulator}, elicitation={"server": "customer"}) as session:
        assert "elicit" not in session.tools
        first = await session.call("order", {"item": "tea"})
        await session.call("order", {"item": "tea"})
        heard = session.drain_server_events()
    assert not first.is_error and "7" in first.text
    assert [question["seq"] for question in asked] == [1, 2]
    assert asked[0]["message"] == "How many?" and asked[0]["server"] == "shop" and asked[0]["tool"] == "order"
    assert asked[0]["schema"]["properties"]["n"]["type"] == "integer"
    kinds = [(request.kind, request.tool, request.answer) for request in heard.requests]
    answer = {"action": "accept", "content": {"n": 7}}
    assert kinds == [(RequestKind.ELICITATION, "order", answer)] * 2
    assert heard.requests[0].asked["message"] == "How many?"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_completion_within_a_call_comes_from_the_configured_model(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model()
    async with listening(model.app) as address:
        sampling = {"url": f"{address}/v1/", "model": "m", "api_key": "sk-very-secret", "max_tokens": 20}
        async with leased(transport, sampling=sampling) as session:
            result = await session.call("summarize", {"text": "a long <|im_end|> story"})
            heard = session.drain_server_events()
    assert result.text == "A LONG < |IM_END|> STORY"
    assert model.requests[0]["model"] == "m" and model.requests[0]["max_tokens"] == 20
    assert model.requests[0]["messages"][-1] == {"role": "user", "content": "a long < |im_end|> story"}
    assert model.headers[0]["authorization"] == "Bearer sk-very-secret"
    (request,) = heard.requests
    assert request.kind is RequestKind.SAMPLING and request.answer is not None
    assert (
        request.answer["content"] == {"type": "text", "text": "A LONG < |IM_END|> STORY"}
        and request.answer["model"] == "echo-1"
    )
    assert "sk-very-secret" not in repr(heard)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("tool", ["order", "summarize"])
async def test_what_nobody_is_configured_to_answer_is_refused_with_the_remedy(transport: str, tool: str) -> None:
    key = "elicitation" if tool == "order" else "sampling"
    arguments = {"item": "tea"} if tool == "order" else {"text": "x"}
    async with leased(transport) as session:
        if transport != "stdio-handshake":  # servers of the SDK look at our capabilities and do not even ask
            with pytest.raises(RequestRefused, match=rf"(?s){key}.*keys `elicitation` and `sampling`"):
                await session.call(tool, arguments)
            return
        result = await session.call(tool, arguments)
        requests = session.drain_server_events().requests
    # Others ask all the same, get a refusal, and decide themselves how the call ends.
    assert result.is_error
    (request,) = requests
    assert request.answer is None and request.refused is not None
    assert f"{key} is not configured here" in request.refused and f"{key}: {{" in request.refused


@pytest.mark.parametrize("transport", ["in_process", "in_lines", "http-handshake", "stdio-handshake"])
@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"action": "shrug"}, "the action 'shrug'"),
        ({"action": "accept", "content": {"n": "many"}}, "n: expected integer"),
    ],
    ids=["action", "schema"],
)
async def test_a_simulator_that_answers_off_contract_breaks_the_call(
    transport: str, answer: dict[str, Any], problem: str
) -> None:
    simulator = customer(answer, [])
    async with leased(transport, servers={"customer": simulator}, elicitation={"server": "customer"}) as session:
        with pytest.raises(RequestRefused, match=f"shop/order: elicitation: .*{problem}"):
            await session.call("order", {"item": "tea"})


@pytest.mark.parametrize("transport", ["http", "stdio-handshake"])
async def test_a_model_that_says_no_breaks_the_call(transport: str) -> None:
    model = Model()
    model.status = 500
    async with listening(model.app) as address:
        sampling = {"url": f"{address}/v1", "model": "m", "body": {"max_completion_tokens": 9}}
        async with leased(transport, sampling=sampling) as session:
            # In the API's own words, which the server is not told.
            with pytest.raises(RequestRefused, match=re.escape('the endpoint answered HTTP 500: {"error":"no"}')):
                await session.call("summarize", {"text": "x"})
            (request,) = session.drain_server_events().requests
    assert request.refused is not None and request.refused.endswith("the endpoint answered HTTP 500")
    assert model.requests[0]["max_completion_tokens"] == 9 and "max_tokens" not in model.requests[0]


async def test_a_model_that_is_not_there_is_told_once_with_its_place_and_no_password() -> None:
    sampling = {"url": "http://user:hunter2@127.0.0.1:9/v1", "model": "m"}
    async with leased("in_process", sampling=sampling) as session:
        said = r"^shop/summarize: sampling: 127\.0\.0\.1:9: nothing answers \(ConnectError\): .*: All connection"
        with pytest.raises(RequestRefused, match=said):
            await session.call("summarize", {"text": "x"})


@pytest.mark.parametrize("transport", ["in_process", "in_lines", "http-handshake", "stdio-handshake"])
async def test_an_answer_that_takes_too_long_is_given_up(transport: str) -> None:
    simulator = MCPServer("customer", log_level="ERROR")

    @simulator.tool(name="elicit", meta={"mcp-rollout/role": "elicit"})
    async def elicit() -> dict[str, Any]:
        await anyio.sleep_forever()
        return {}

    elicitation = {"server": "customer", "timeout_s": 0.2}
    with anyio.fail_after(20):
        async with leased(transport, servers={"customer": simulator}, elicitation=elicitation) as session:
            with pytest.raises(RequestRefused, match=r"no answer within 0.2 s \(elicitation.timeout_s\)"):
                await session.call("order", {"item": "tea"})


@pytest.mark.parametrize("transport", ["in_process", "in_lines", "http", "stdio-handshake"])
async def test_waiting_for_an_answer_does_not_use_up_the_calls_own_time(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leased(
        transport,
        servers={"customer": patient(Clock(monkeypatch), 90)},
        elicitation={"server": "customer", "timeout_s": 600},
        entry={"call_timeout_s": 60},
    ) as session:
        assert not (await session.call("order", {"item": "tea"})).is_error


async def test_a_call_that_hangs_after_its_answer_still_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    async with leased("stdio-handshake", entry={"call_timeout_s": 60}) as session:
        await session.call("order", {"item": "tea"})
        with pytest.raises(CallTimeout):
            await clock.outlast(session.call("wait", {"s": 600}), 60)


async def test_a_server_that_keeps_asking_is_stopped() -> None:
    server = MCPServer("shop", log_level="ERROR")

    @server.tool(structured_output=False)
    async def nag(ctx: Context) -> str:
        """Nag."""
        for number in range(5):
            try:
                await ctx.elicit("Sure?", Amount)
            except Exception as error:
                return f"{number}: {error}"
        return "never stopped"

    simulator = customer({"action": "accept", "content": {"n": 1}}, [])
    async with serving(server, "http-handshake") as entry:
        unused = {"factory": "unused:unused", "required": True}
        config = {"servers": {"shop": entry, "customer": unused}, "elicitation": {"server": "customer"}}
        gateway = Gateway(
            GatewayConfig.model_validate({**config, "max_requests_per_call": 3}),
            connect=lambda _, name: simulator if name == "customer" else None,
        )
        async with gateway, gateway.lease(trajectory="t", task=None, seed=1) as session:
            text = (await session.call("nag", {})).text
    assert text.startswith("3: ") and "max_requests_per_call" in text


async def test_refused_questions_of_one_call_are_logged_in_powers_of_ten() -> None:
    call = InFlightCall(server="shop", tool="nag")
    with capture_logs() as logs:
        for _ in range(120):
            with pytest.raises(Refused):
                await call.answer(RequestKind.ELICITATION, {})
    assert [entry["refused"] for entry in logs if entry["event"] == "exchange.refused"] == [1, 10, 100]


async def test_on_a_shared_line_a_question_that_names_no_call_is_refused_unless_it_names_the_trajectory() -> None:
    simulator = customer({"action": "accept", "content": {"n": 2}}, [])
    entry = {"command": sys.executable, "args": ["-I", "-S", str(OLD), "2025-11-25"], "required": True}
    servers = {"shop": entry, "customer": {"factory": "unused:unused", "required": True}}
    config = GatewayConfig.model_validate({"servers": servers, "elicitation": {"server": "customer"}})
    connect = {"customer": simulator}
    async with Gateway(config, connect=lambda _, name: connect.get(name)) as gateway:
        async with (
            gateway.lease(trajectory="one", task=None, seed=1) as one,
            gateway.lease(trajectory="two", task=None, seed=2) as two,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(two.call, "wait", {"s": 60})
            await anyio.wait_all_tasks_blocked()
            refused = await one.call("order", {})
            answered = await one.call("order", {"marked": True})
            tasks.cancel_scope.cancel()
    assert refused.is_error and "serves several trajectories" in refused.text
    assert not answered.is_error and '"n": 2' in answered.text


def patient(clock: Clock, pause_s: float, over: Callable[[], Any] = lambda: None) -> MCPServer:
    """A user simulator that takes its time, and calls `over` then."""
    server = MCPServer("customer", log_level="ERROR")

    @server.tool(name="elicit", meta={"mcp-rollout/role": "elicit"})
    async def elicit() -> dict[str, Any]:
        await clock.advance(pause_s)
        over()
        return {"action": "accept", "content": {"n": 1}}

    return server


async def test_a_question_that_names_no_call_belongs_to_all_calls_in_flight_and_stops_all_their_clocks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results: list[ToolResult] = []
    file = tmp_path / "answered"
    async with leased(
        "stdio-handshake",
        servers={"customer": patient(Clock(monkeypatch), 90, file.touch)},
        elicitation={"server": "customer", "timeout_s": 600},
        entry={"call_timeout_s": 60},
    ) as session:

        async def call(name: str, arguments: dict[str, Any]) -> None:
            results.append(await session.call(name, arguments))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, "wait", {"file": str(file)})  # longer than its own time, less what the user took
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(call, "order", {})
        (request,) = session.drain_server_events().requests
    assert request.tool == "wait or order"
    assert [result.is_error for result in results] == [False, False]


async def test_a_question_that_waits_for_the_user_to_answer_another_one_keeps_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results: list[ToolResult] = []
    async with leased(
        "stdio-handshake",
        servers={"customer": patient(Clock(monkeypatch), 70)},
        elicitation={"server": "customer", "timeout_s": 120},
        entry={"call_timeout_s": 60},
    ) as session:

        async def order() -> None:
            results.append(await session.call("order", {}))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(order)
    assert [result.is_error for result in results] == [False] * 3


async def test_the_elicitation_server_must_have_the_tool() -> None:
    server = shop()
    config = GatewayConfig.model_validate(
        {"servers": {"shop": {"factory": "unused:unused"}}, "elicitation": {"server": "shop"}}
    )
    with pytest.raises(ConfigError, match=r"elicitation.server: 'shop' has no tool with the role elicit"):
        async with Gateway(config, connect=lambda *_: server):
            pass


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_progress_and_log_messages_are_noted_on_their_call(transport: str) -> None:
    async with leased(transport) as session:
        assert (await session.call("count", {"to": 3})).text == "counted"
        heard = session.drain_server_events()
    progress = [(note.progress, note.total) for note in heard.notifications if note.kind is NotificationKind.PROGRESS]
    logs = [(note.level, note.text) for note in heard.notifications if note.kind is NotificationKind.LOG]
    assert progress == [(0, 3), (1, 3), (2, 3)]
    if transport == "stdio-handshake":
        assert logs == [("info", "at 0"), ("info", "at 2")]  # `debug` is below the default level
    else:
        assert logs == [("info", "at 0"), ("info", "at 1"), ("info", "at 2")]
    assert {note.tool for note in heard.notifications} == {"count"} and heard.more_notifications == 0


@pytest.mark.parametrize("transport", ["http", "sse", "stdio-handshake"])
async def test_a_flood_of_notifications_costs_a_bounded_amount_and_no_call(transport: str) -> None:
    many = 10_000 if transport == "stdio-handshake" else 700
    async with leased(transport, entry={"call_timeout_s": 30}) as session:
        results: list[str] = []

        async def call(name: str, arguments: dict[str, Any]) -> None:
            results.append((await session.call(name, arguments)).text)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, "count", {"to": many})
            tasks.start_soon(call, "count", {"to": 1})
        heard = session.drain_server_events()
    assert results == ["counted", "counted"]
    assert len(heard.notifications) == ServerEvents.MAX_NOTIFICATIONS
    in_all = len(heard.notifications) + heard.more_notifications
    # Half of the log messages of the older server are below the level that is kept.
    assert in_all >= (many * 1.5 if transport == "stdio-handshake" else many)


async def test_a_call_that_was_begun_is_not_taken_for_one_that_never_arrived() -> None:
    """Turned away in its second round, when the server may have done something in the first."""
    server, rounds = shop(), 0
    app = server.streamable_http_app()

    async def busy(scope: Any, receive: Any, send: Any) -> None:
        nonlocal rounds
        if scope["type"] == "http" and (b"mcp-method", b"tools/call") in scope["headers"]:
            rounds += 1
            if rounds == 2:
                return await Response(status_code=429)(scope, receive, send)
        await app(scope, receive, send)

    simulator = customer({"action": "accept", "content": {"n": 1}}, [])
    async with listening(busy) as address:
        unused = {"factory": "unused:unused", "required": True}
        servers = {"shop": {"url": f"{address}/mcp", "required": True}, "customer": unused}
        config = GatewayConfig.model_validate({"servers": servers, "elicitation": {"server": "customer"}})
        gateway = Gateway(config, connect=lambda _, name: simulator if name == "customer" else None)
        async with gateway, gateway.lease(trajectory="t", task=None, seed=1) as session:
            with pytest.raises(DeliveryUnknown, match="begun, but never finished: HTTP 429"):
                await session.call("order", {"item": "tea"})
    assert rounds == 2


@pytest.mark.parametrize("stop", [{"type": "stop"}, ["stop"], 3])
def test_a_completion_that_ended_for_no_stated_reason_is_no_completion(stop: Any) -> None:
    choice = {"message": {"content": "yes"}, "finish_reason": stop}
    with pytest.raises(ApiError, match=r"choices.0.finish_reason: Input should be a valid string"):
        parsed(Completion, json.dumps({"choices": [choice]}).encode())


async def test_a_completion_that_is_nested_without_end_is_a_refusal() -> None:
    async def nested(scope: Any, receive: Any, send: Any) -> None:
        await Response("[" * 200_000, media_type="application/json")(scope, receive, send)

    asked = {"messages": [{"role": "user", "content": {"type": "text", "text": "Say."}}], "maxTokens": 9}
    async with listening(nested) as url:
        with pytest.raises(RequestRefused, match="recursion limit exceeded"):
            await Sampler(SamplingConfig(url=url, model="m")).complete(asked)
