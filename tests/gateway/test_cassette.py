"""Cassettes over real servers in process: what is recorded, what is replayed without them, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from clock import Clock
from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

from mcp_rollout.gateway.cassette.lines import RecordedResult, unnamed
from mcp_rollout.gateway.cassette.reading import SUFFIX, Cassette
from mcp_rollout.gateway.cassette.recording import Recorder
from mcp_rollout.gateway.cassette.replaying import Missing, Replay
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.errors import CallTimeout, ConfigError, HarnessError, ReplayMismatch
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.server_events import ServerEvents
from mcp_rollout.gateway.types import REWARD_META, ToolResult

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")]
ROLE = "mcp-rollout/role"
TRAJECTORIES = tuple(str(number) * 32 for number in range(10))


class Amount(BaseModel):
    n: int


async def ask_amount() -> Elicit[Amount]:
    return Elicit("How many?", Amount)


class Shop:
    """A server with state per trajectory, and the number of starts and calls that it has seen."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.server = server = MCPServer("shop", log_level="ERROR")
        stock: dict[str, int] = {}
        barrier = anyio.Event()

        def of(ctx: Context) -> str:
            self.calls["all"] += 1
            return str((ctx.request_context.meta or {}).get("mcp-rollout/trajectory"))

        @server.tool(meta={ROLE: "reset"})
        async def reset(task: str, seed: int, ctx: Context) -> dict[str, Any]:
            if task == "broken":
                raise ToolError("no such task")
            stock[of(ctx)] = seed
            return {}

        @server.tool(meta={ROLE: "score"})
        async def score(messages: list[Any], ctx: Context) -> dict[str, Any]:
            return {"score": stock[of(ctx)], "parts": {}}

        @server.tool(structured_output=False)
        async def add(n: int, ctx: Context) -> str:
            """Add."""
            stock[of(ctx)] += n
            return f"{stock[of(ctx)]} in {of(ctx)}"

        @server.tool(structured_output=False)
        async def refuse(ctx: Context) -> str:
            """Refuse."""
            of(ctx)
            raise ToolError("not today")

        @server.tool(structured_output=False)
        async def order(amount: Annotated[Amount, Resolve(ask_amount)], ctx: Context) -> str:
            """Order."""
            await ctx.info(f"order of {amount.n}")  # pyright: ignore[reportDeprecated]
            return f"ordered {amount.n}"

        @server.tool(structured_output=False)
        async def slow(name: str, ctx: Context) -> str:
            """The calls `first` and `second` end in the other order."""
            await ctx.info(name)  # pyright: ignore[reportDeprecated]
            if name == "first":
                await barrier.wait()
            barrier.set()
            return name

        @server.tool(structured_output=False)
        async def hang(ctx: Context) -> str:
            """Never answers."""
            of(ctx)
            await anyio.sleep_forever()
            raise AssertionError

        @server.tool(meta={ROLE: "elicit"})
        async def elicit(seq: int, message: str, schema: dict[str, Any], server: str, tool: str) -> dict[str, Any]:
            return {"action": "accept", "content": {"n": 6 + seq}}


def config(**more: Any) -> GatewayConfig:
    # The factory does not exist: a replay that started the server would fail.
    entry = {"factory": "unused:unused", "required": True, "call_timeout_s": 60, **more.pop("entry", {})}
    return GatewayConfig.model_validate({"servers": {"shop": entry}, "elicitation": {"server": "shop"}, **more})


@asynccontextmanager
async def recording(path: Path, shop: Shop, made: GatewayConfig | None = None) -> AsyncIterator[Gateway]:
    recorder = Recorder(path)
    try:
        async with Gateway(made or config(), connect=lambda *_: shop.server, name="shop", record=recorder) as gateway:
            yield gateway
    finally:
        recorder.close()


def replaying(path: Path, made: GatewayConfig | None = None) -> Gateway:
    return Gateway(made or config(), name="shop", replay=Replay(Cassette.read(path)))


def lease(gateway: Gateway, number: int = 0, task: str = "t", **identity: Any) -> Any:
    return gateway.lease(trajectory=TRAJECTORIES[number], task=task, seed=5, identity=identity)


def plain(result: ToolResult) -> tuple[Any, ...]:
    return result.text, result.is_error, result.structured, result.coerced, result.fault


def timeless(events: ServerEvents) -> ServerEvents:
    for request in events.requests:
        request.elapsed_s = 0.0
    return events


async def conversation(session: Session) -> list[Any]:
    """Calls in a row and at once, mistakes, refusals, questions of the server; and what was noted."""
    said: list[Any] = [
        plain(await session.call(name, arguments))
        for name, arguments in (
            ("add", {"n": 2}),
            ("add", {"n": "3"}),
            ("add", {"n": "many"}),
            ("nothing", {}),
            ("refuse", {}),
            ("order", {}),
        )
    ]
    at_once: dict[str, Any] = {}

    async def call(name: str) -> None:
        at_once[name] = plain(await session.call("slow", {"name": name}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, "first")
        tasks.start_soon(call, "second")
    scored = await session.invoke("score", {"messages": []}, server="shop")  # type: ignore[arg-type]
    return [*said, sorted(at_once.items()), scored.structured, timeless(session.drain_server_events())]


async def test_a_replay_gives_what_was_recorded_without_the_server(tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "a.jsonl"
    async with recording(path, shop) as gateway, lease(gateway) as session:
        recorded = await conversation(session)
    seen = shop.calls["all"]
    async with replaying(path) as again, lease(again, 1) as session:
        replayed = await conversation(session)
        assert again.catalogue == gateway.catalogue
    assert shop.calls["all"] == seen
    # The trajectory's id is this one's, wherever the server wrote it.
    assert json.dumps(recorded[:6]).replace(TRAJECTORIES[0], TRAJECTORIES[1]) == json.dumps(replayed[:6])
    assert recorded[6:] == replayed[6:]
    assert recorded[1][3] == {"n": 3} and recorded[4] == (
        "Error executing tool refuse: not today",
        True,
        None,
        {},
        None,
    )
    noted = recorded[-1]
    assert [note.text for note in noted.notifications] == ["order of 7", "first", "second"]
    assert [request.answer for request in noted.requests] == [{"action": "accept", "content": {"n": 7}}]


def test_what_a_trusted_server_said_of_reward_and_end_is_kept_without_its_meta() -> None:
    kept = RecordedResult.of(ToolResult(reward=0.5, ends_world=True)).model_dump_json()
    found = RecordedResult.model_validate_json(kept).result(0.0)
    assert (found.reward, found.ends_world) == (0.5, True)


async def test_recording_changes_nothing_but_writes_readable_lines(tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "a.jsonl"
    async with recording(path, shop) as gateway, lease(gateway, sample=1) as session:
        await session.call("add", {"n": "2"})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["cassette", "gateway", "lease", "call", "call"]
    assert lines[2] == {"kind": "lease", "gateway": "shop", "task": "t", "seed": 5, "identity": {"sample": 1}}
    elapsed = lines[4].pop("elapsed_s")
    assert elapsed > 0 and lines[4] == {
        "kind": "call",
        "server": "shop",
        "tool": "add",
        "arguments": {"n": 2},
        "result": {"text": "7 in ${trajectory}"},
    }


async def test_the_first_differing_call_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    async with recording(path, Shop()) as gateway, lease(gateway) as session:
        await session.call("add", {"n": 2})
        await session.call("refuse", {})
    async with replaying(path) as gateway:
        with pytest.raises(ReplayMismatch) as caught:
            async with lease(gateway) as session:
                await session.call("add", {"n": 4})
    expected = 'a.jsonl:5: recorded was add {"n":2}, asked was add {"n":4}, which differs in n'
    assert expected in str(caught.value)
    async with replaying(path) as gateway:
        with pytest.raises(ReplayMismatch, match=r"a.jsonl:6: the recording goes on with refuse \{\}, and the traj"):
            async with lease(gateway) as session:
                await session.call("add", {"n": 2})
        with pytest.raises(
            ReplayMismatch, match=r"has shop: task 't', seed 5, \{\} 1 times, and it was asked for once"
        ):
            async with lease(gateway, 1):
                pass
        with pytest.raises(ReplayMismatch, match="has no trajectory of shop: task 'other', seed 5"):
            async with lease(gateway, 1, task="other"):
                pass


async def test_what_is_missing_is_live_with_the_trajectorys_state(tmp_path: Path) -> None:
    path, shop = tmp_path / "a.jsonl", Shop()
    async with recording(path, shop) as gateway, lease(gateway) as session:
        await session.call("add", {"n": 2})
        await session.call("order", {})
        await session.call("add", {"n": 1})
    replay = Replay(Cassette.read(path), Missing.LIVE)
    recorder = Recorder(tmp_path / "b.jsonl")
    async with Gateway(
        config(), connect=lambda *_: shop.server, name="shop", replay=replay, record=recorder
    ) as gateway:
        before = shop.calls["all"]
        async with lease(gateway, 1) as session:
            assert (await session.call("add", {"n": 2})).text.startswith("7 ")
            assert (await session.call("order", {})).text == "ordered 7"
            assert shop.calls["all"] == before
            assert (await session.call("add", {"n": 100})).text == f"107 in {TRAJECTORIES[1]}"
            # The calls that brought the server up to date left no second note.
            assert len(session.drain_server_events().requests) == 1
            assert (await session.call("order", {})).text == "ordered 8"
        async with lease(gateway, 2, sample=1) as session:
            assert (await session.call("add", {"n": 1})).text == f"6 in {TRAJECTORIES[2]}"
    recorder.close()
    async with replaying(tmp_path / "b.jsonl") as gateway, lease(gateway, 3, sample=1) as session:
        assert (await session.call("add", {"n": 1})).text == f"6 in {TRAJECTORIES[3]}"
    # With both files, in whatever order, the trajectory that differed is the new one.
    for names in (("1", "2"), ("2", "1")):
        both = tmp_path / "".join(names)
        both.mkdir()
        for name, written in zip(names, (path, tmp_path / "b.jsonl"), strict=True):
            (both / f"{name}{SUFFIX}").write_bytes(written.read_bytes())
        async with replaying(both) as gateway, lease(gateway, 1) as session:
            assert (await session.call("add", {"n": 2})).text.startswith("7 ")
            assert (await session.call("order", {})).text == "ordered 7"
            assert (await session.call("add", {"n": 100})).text == f"107 in {TRAJECTORIES[1]}"
            assert (await session.call("order", {})).text == "ordered 8"


async def test_failures_are_replayed_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, clock = tmp_path / "a.jsonl", Clock(monkeypatch)

    async def failures(gateway: Gateway) -> list[str]:
        found: list[str] = []
        with pytest.raises(CallTimeout) as timeout:
            async with lease(gateway) as session:
                await clock.outlast(session.call("hang", {}), 60)
        with pytest.raises(HarnessError) as refused:
            async with lease(gateway, 1, task="broken"):
                pass
        assert refused.value.refused and refused.value.role == "reset" and timeout.value.tool == "hang"
        return [*found, str(timeout.value), str(refused.value)]

    async with recording(path, Shop()) as gateway:
        recorded = await failures(gateway)
    async with replaying(path) as gateway:
        assert await failures(gateway) == recorded


async def test_a_call_that_was_cut_short_is_cut_short_again(tmp_path: Path) -> None:
    path, made = tmp_path / "a.jsonl", config(entry={"call_timeout_s": 30})

    async def hang(session: Session) -> None:
        await session.call("hang", {})
        raise AssertionError("it is never answered")

    async def cut(gateway: Gateway) -> None:
        async with lease(gateway) as session:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hang, session)
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
            assert (await session.call("add", {"n": 1})).text.startswith("6 ")

    async with recording(path, Shop(), made) as gateway:
        await cut(gateway)
    async with replaying(path, made) as gateway:
        await cut(gateway)


async def test_no_secret_is_written_and_a_replay_needs_another_value_only(tmp_path: Path) -> None:
    path, server = tmp_path / "a.jsonl", MCPServer("shop", log_level="ERROR")

    @server.tool(structured_output=False)
    async def login(api_key: str, name: str) -> str:
        """Log in."""
        return f"{name} has {api_key}"

    def made(secret: str) -> GatewayConfig:
        change = {"login": {"fixed": {"api_key": secret}}}
        return GatewayConfig.model_validate(
            {"servers": {"shop": {"factory": "unused:unused", "required": True, "tools": {"change": change}}}}
        )

    secret = 'hunter2-"hunter2"'  # as JSON it is another text
    recorder = Recorder(path)
    async with (
        Gateway(made(secret), connect=lambda *_: server, name="shop", record=recorder) as gateway,
        lease(gateway) as session,
    ):
        assert (await session.call("login", {"name": secret})).text == "[secret] has [secret]"
    recorder.close()
    assert "hunter2" not in path.read_text() and '"api_key": "[secret]"' in path.read_text()
    async with replaying(path, made("something else")) as gateway, lease(gateway, 1) as session:
        assert (await session.call("login", {"name": "[secret]"})).text == "[secret] has [secret]"


async def test_an_edited_line_counts_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    async with recording(path, Shop()) as gateway, lease(gateway) as session:
        await session.call("add", {"n": 2})
    lines = path.read_text().splitlines()
    path.write_text("\n\n".join([*lines[:4], lines[4].replace("7 in ${trajectory}", "none left")]))
    async with replaying(path) as gateway, lease(gateway) as session:
        assert (await session.call("add", {"n": 2})).text == "none left"
    faults: Mapping[str, str] = {
        lines[0].replace("1", "2"): r"a.jsonl:1: version: is of version 2, this program reads version 1",
        '{"kind": "call", "server": "shop"}': r"a.jsonl:1: call.tool: Field required",
        "{": r"a.jsonl:1: is not a line of JSON",
        '{"tool": "x"}': r"a.jsonl:1: has no known kind \(see docs/schemas/cassette",
        lines[4]: r"a.jsonl:1: is a call before any lease",
    }
    for line, message in faults.items():
        path.write_text(line)
        with pytest.raises(ConfigError, match=message):
            Cassette.read(path)


async def test_cassettes_of_something_else_are_refused_at_the_start(tmp_path: Path) -> None:
    path, shop = tmp_path / "a.jsonl", Shop()
    async with recording(path, shop):
        pass
    with pytest.raises(ConfigError, match=r"has no environment 'other'.*it has: shop"):
        async with Gateway(config(), name="other", replay=Replay(Cassette.read(path))):
            pass
    with pytest.raises(ConfigError, match="exists already"):
        Recorder(path)

    @shop.server.tool()
    async def further() -> str:
        return ""

    with pytest.raises(ConfigError, match="was recorded with other tools or instructions"):
        replay = Replay(Cassette.read(path), Missing.LIVE)
        async with Gateway(config(), connect=lambda *_: shop.server, name="shop", replay=replay):
            pass
    with pytest.raises(ConfigError, match=r"has no \*.cassette.jsonl"):
        Cassette.read(tmp_path)


async def test_a_server_that_was_ended_for_its_memory_is_gone_in_the_replay_too(
    tmp_path: Path, mini: Callable[..., dict[str, Any]]
) -> None:
    path = tmp_path / "a.jsonl"
    made = GatewayConfig.model_validate(
        {"servers": {"shop": mini("abort", "hoard", scope="process", max_memory_mb=256)}}
    )

    async def hoarded(gateway: Gateway) -> list[str]:
        async with lease(gateway) as session:
            return [(await session.call(name, {})).text for name in ("hoard", "abort", "hoard")]

    recorder = Recorder(path)
    async with Gateway(made, name="shop", record=recorder) as gateway:
        recorded = await hoarded(gateway)
    recorder.close()
    assert recorded[1].startswith("abort is gone: its server was ended because it used up its 256 MB")
    async with replaying(path, made) as gateway:
        assert await hoarded(gateway) == recorded


async def test_a_session_that_is_not_recorded_sends_as_before(tmp_path: Path) -> None:
    """Nothing of cassettes is on the path of a call: the class that sends is the plain one."""
    async with Gateway(config(), connect=lambda *_: Shop().server) as gateway, lease(gateway) as session:
        assert type(session.sending).__module__ == "mcp_rollout.gateway.leases.sending"
        assert REWARD_META not in (await session.call("add", {"n": 1})).meta


@pytest.mark.parametrize(
    ("recorded", "replayed"),
    [
        ("t-1", "t-2"),
        ("row7", "a trajectory of another length"),
        ('quoted "id" and \\ more', "t-3"),
        ("é" * 16, "ü" * 20),
    ],
)
async def test_an_id_of_any_length_gives_way_to_the_replays_and_a_text_like_the_placeholder_stays(
    recorded: str, replayed: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    texts = ["${trajectory}", "${trajectory$}", "$${trajectory}", f"x{recorded}x", "row77", "at-1"]
    server = MCPServer("shop", log_level="ERROR")

    @server.tool(structured_output=False)
    async def say(text: str, ctx: Context) -> str:
        return f"{text} in {(ctx.request_context.meta or {})['mcp-rollout/trajectory']}\nand {text}"

    @server.tool(meta={ROLE: "elicit"})
    async def elicit(seq: int, message: str, schema: dict[str, Any], server: str, tool: str) -> dict[str, Any]:
        return {}

    del say, elicit  # registered
    recorder = Recorder(path)
    async with Gateway(config(), connect=lambda *_: server, name="shop", record=recorder) as gateway:
        async with gateway.lease(trajectory=recorded, task=None, seed=5) as session:
            for text in texts:
                await session.call("say", {"text": text})
            await session.call("say", {"text": f"of {recorded}"})
    recorder.close()
    async with replaying(path) as gateway, gateway.lease(trajectory=replayed, task=None, seed=5) as session:
        kept = [text for text in texts if len(recorded) < 16 or recorded not in text]
        assert [(await session.call("say", {"text": text})).text for text in kept] == [
            f"{text} in {replayed}\nand {text}" for text in kept
        ]
        said = await session.call("say", {"text": f"of {replayed}"})
        assert said.text == f"of {replayed} in {replayed}\nand of {replayed}"


async def test_a_short_id_that_is_a_word_or_a_number_is_recorded_as_it_is(tmp_path: Path) -> None:
    assert [unnamed(f'["{name} is {name}"]', name) for name in ("plum", "17")] == ['["plum is plum"]', '["17 is 17"]']
