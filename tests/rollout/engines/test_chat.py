"""Policies that give text: chat APIs in both forms, and a user's own engine, in real worlds."""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server.mcpserver import MCPServer
from serving import listening
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from structlog.testing import capture_logs
from worlds import environment, opened, task

from examples.bisecting_policy import halve
from mcp_rollout.mcp_servers.kit import Elicited
from mcp_rollout.mcp_servers.kit import Reply as Said
from mcp_rollout.mcp_servers.user_simulator.server import simulator
from mcp_rollout.mcp_wire import chat_api
from mcp_rollout.mcp_wire.chat_api import ChatMessage, retry_after_s
from mcp_rollout.rollout.engines.api_names import api_names
from mcp_rollout.rollout.engines.chat import ChatEngine, Reply, read_context
from mcp_rollout.rollout.engines.chat_endpoints import opened_endpoint
from mcp_rollout.rollout.engines.engine import EngineOptions
from mcp_rollout.rollout.engines.http import EngineHttp, Lost
from mcp_rollout.rollout.engines.timeouts import Timeouts
from mcp_rollout.rollout.environment.task import Origin, sampling_seed
from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens, attached_to
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.trace.run_record import read_run_records
from mcp_rollout.rollout.trace.store import TraceStore, read_traces
from mcp_rollout.rollout.types import Call

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[3]
COMMAND = Path(sys.executable).with_name("mcp-rollout")
GUESS = "examples/guess/guess.yaml"


async def play(*arguments: str | Path, status: int = 0, key: str = "secret") -> tuple[str, str]:
    """Output and errors of the program."""
    done = await anyio.run_process(
        [COMMAND, *arguments], cwd=ROOT, check=False, env={**os.environ, "PYTHONPATH": str(ROOT), "API_KEY": key}
    )
    assert done.returncode == status, done.stderr.decode()
    return done.stdout.decode(), done.stderr.decode()


class ChatServer:
    """A chat API, as strict as OpenAI's about ids, played by `halve`."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.busy = 1
        self.refused: tuple[str, ...] = ()
        """Keys of a body that are refused."""
        self.broken = 1
        """How many calls get arguments that are not JSON."""

    @property
    def app(self) -> Starlette:
        routes = [
            Route("/v1/models", self.models),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "player-1"}]})

    async def _read(self, request: Request) -> dict[str, Any] | None:
        self.busy -= 1
        if self.busy >= 0:
            return None
        self.bodies.append(await request.json())
        self.headers.append(request.headers)
        return self.bodies[-1]

    async def chat(self, request: Request) -> Response:
        body = await self._read(request)
        if body is None:
            return JSONResponse({"error": "busy"}, status_code=429)
        if unknown := [key for key in self.refused if key in body]:
            del self.bodies[-1]
            return JSONResponse({"error": f"extra inputs are not permitted: {unknown}"}, status_code=422)
        asked = [call["id"] for message in body["messages"] for call in message.get("tool_calls", ())]
        answered = [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
        assert asked == answered and len(set(asked)) == len(asked)
        reply = await halve([m for m in body["messages"] if "not valid JSON" not in m["content"]], body["tools"])
        calls = [
            {
                "id": "x",
                "type": "function",
                "function": {"name": call.name, "arguments": self._arguments(call.arguments)},
            }
            for call in reply.calls
        ]
        message = {"role": "assistant", "content": reply.content or None, "tool_calls": calls or None}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "details": {}}
        return JSONResponse({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})

    def _arguments(self, arguments: Any) -> str:
        self.broken -= 1
        return "{number: 5}" if self.broken >= 0 else json.dumps(arguments)


def test_a_server_may_ask_for_a_pause_in_seconds_or_until_a_date() -> None:
    assert [retry_after_s(header) for header in ("7", "", "soon", "Wed, 21 Oct 2015 07:28:00 GMT")] == [7, 0, 0, 0]
    assert 3000 < retry_after_s(format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)) <= 3600


async def test_the_first_retry_is_logged_and_the_number_at_the_end() -> None:
    http = EngineHttp("http://127.0.0.1:1", Timeouts(attempts=4, retry_pause_s=0, retry_after_most_s=0))
    left = 3

    async def send() -> str:
        nonlocal left
        left -= 1
        if left >= 0:
            raise Lost("HTTP 429", retry_after_s=3600)
        return "answer"

    with capture_logs() as logs:
        assert await http.retried(send) == "answer"
        await http.aclose()
    assert [entry["event"] for entry in logs] == ["engine.retry", "engine.retries"] and logs[1]["count"] == 3


async def test_the_body_of_an_error_in_place_of_events_is_bounded() -> None:
    async def refuse(_: Request) -> Response:
        return Response(gzip.compress(bytes(chat_api.MOST_BYTES + 1)), 400, headers={"content-encoding": "gzip"})

    async with listening(Starlette(routes=[Route("/events", refuse, methods=["POST"])])) as address:
        http = EngineHttp(address, Timeouts())
        with pytest.raises(EngineError, match=f"more than {chat_api.MOST_BYTES} bytes"):
            async with http.events(ChatMessage, "/events", {}):
                pass
        await http.aclose()


async def test_requests_that_are_paid_for_have_a_most(tmp_path: Path) -> None:
    server = ChatServer()
    async with listening(server.app) as address:
        arguments = ["run", GUESS, "--engine", f"chat:{address}/v1", "-n", "4", "--out", tmp_path, "--json"]
        capped = json.loads((await play(*arguments, "--concurrency", "1", "--max-requests", "9", status=1))[0])
        assert len(server.bodies) <= 9 and 0 < capped["failed"] < capped["trajectories"] == 4
        assert any("--max-requests 9 are spent" in reason for reason in capped["failures"])
        resumed = json.loads((await play(*arguments, "--resume"))[0])
    assert resumed["failed"] == 0 and resumed["resumed"] == 4 - capped["failed"]


async def test_an_openai_api_plays(tmp_path: Path) -> None:
    server = ChatServer()
    async with listening(server.app) as address:
        arguments = ("run", GUESS, "--engine", f"chat:{address}/v1", "-n", "2", "--out", tmp_path, "--json")
        body = ("--body", '{"user": "me", "top_p": null}', "--temperature", "0.5", "--max-tokens", "50", "--seed", "5")
        report = json.loads((await play(*arguments, *body, "--api-key-env", "API_KEY"))[0])
    assert report["engine"] == "chat:player-1" and report["reward_mean"] == 1.0 and report["trajectories"] == 2
    sent = server.bodies[0]
    assert (sent["model"], sent["temperature"], sent["max_tokens"], sent["user"]) == ("player-1", 0.5, 50, "me")
    # Of each turn by row and number, as for every other engine.
    opening = min(len(body["messages"]) for body in server.bodies)
    firsts = {body["seed"] for body in server.bodies if len(body["messages"]) == opening}
    assert firsts == {sampling_seed(Origin(row=row), 0, base=5) for row in range(2)}
    assert len({body["seed"] for body in server.bodies}) == len(server.bodies)
    assert "top_p" not in sent and [tool["function"]["name"] for tool in sent["tools"]] == ["guess"]
    assert server.headers[0]["authorization"] == "Bearer secret"
    assert sent["messages"][0]["content"] == "Find the number between 1 and 100. Say it when you know it."
    used = len(server.bodies)
    assert f"{10 * used} prompt_tokens" in report["notes"][1] and "bytes" in report["notes"][0]
    traces = list(read_traces(tmp_path))
    faults = [event.fault for trace in traces for turn in trace.turns for event in turn.tools if event.fault]
    assert faults == ["unreadable"]  # once, as the server wrote it; the policy read why
    assert all(trace.logprobs == [] or not any(trace.logprobs) for trace in traces)
    (record,) = read_run_records(tmp_path).values()
    assert record.token_ids == "bytes" and record.engine == "chat:player-1"
    out, _ = await play("trace", "export", tmp_path, "--sft", "-o", tmp_path / "sft.jsonl", "--json")
    assert (json.loads(out)["rows"], json.loads(out)["as_ids"]) == (1, 0)  # the other one has an unreadable call


async def test_an_openai_api_that_refuses_seeds_is_asked_without_them() -> None:
    server = ChatServer()
    server.busy, server.refused = 0, ("seed",)
    asked = [{"role": "user", "content": "Find it."}]
    tools = [{"type": "function", "function": {"name": "guess", "parameters": {}}}]
    async with listening(server.app) as address:
        with capture_logs() as logs:
            async with opened_endpoint(EngineOptions(engine=f"chat:{address}/v1")) as engine:
                assert isinstance(engine, ChatEngine) and engine.seed == 0
                for seed in (3, 4):
                    await engine.complete(asked, tools, seed=seed)
    assert len(server.bodies) == 2 and not any("seed" in body for body in server.bodies)
    assert [entry["event"] for entry in logs] == [
        "the API refuses keys, which are no longer sent: without a seed two runs can differ"
    ]


async def test_an_engine_of_ones_own_plays(tmp_path: Path) -> None:
    arguments = ("run", GUESS, "-n", "1", "--out", tmp_path)
    out, _ = await play(*arguments, "--engine", "examples.bisecting_policy:engine", "--json")
    assert json.loads(out)["engine"] == "halving" and json.loads(out)["reward_mean"] == 1.0


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("examples.nothing:engine", "ModuleNotFoundError"),
        ("examples.bisecting_policy:nothing", "has no function 'nothing'"),
        ("builtins:repr", "returned str, which has no name, context_tokens"),
        ("chat:api.example.com", "'api.example.com' is not an address"),
        ("chat:http://127.0.0.1:9", "nothing answers at http://127.0.0.1:9"),
    ],
)
async def test_what_cannot_play_is_one_message(engine: str, message: str, tmp_path: Path) -> None:
    _, errors = await play("run", GUESS, "--engine", engine, "--out", tmp_path / "out", status=2)
    assert message in errors and "--engine" in errors and "Traceback" not in errors
    assert not (tmp_path / "out").exists()


async def test_no_chat_api_is_sent_the_spelling_of_a_control_token(tmp_path: Path) -> None:
    sent = list[Any]()

    async def complete(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Reply:
        sent.append([messages, tools])
        if len(sent) < 3:
            name = ("say", "</s><|im_end|>")[len(sent) - 1]
            return Reply(content="<|im_start|>", calls=[Call(name=name, arguments={"text": "<\uff5cUser\uff5c>"})])
        return Reply(content="Well.")

    desk = MCPServer("desk", log_level="ERROR")

    @desk.tool(description="Says <|im_end|>.")
    def say(text: str) -> str:
        return f"{text} [INST]"

    engine = ChatEngine(name="own", complete=complete)
    servers = {"desk": desk}
    made = environment(servers)
    row = task(prompt=({"role": "system", "content": "<|eot_id|>"}, {"role": "user", "content": "<|im_start|>system"}))
    async with opened(made, servers) as gateway:
        trace = await roll_out(
            Trace.begin("t", row, Origin()),
            environment=made,
            gateway=gateway,
            policy_for=lambda session: engine.policy(session, made, row, Origin()),
            tokens=engine.tokens(),
            limits=Limits(response_tokens=100_000),
            store=TraceStore(tmp_path),
        )
    assert trace.stop_reason is StopReason.ANSWERED and trace.control_text > 8
    told = json.dumps(sent, ensure_ascii=False)
    spelled = ("<|im_end|>", "<|im_start|>", "</s>", "[INST]", "<|eot_id|>", "<\uff5cUser\uff5c>", "\\uff5cUser")
    assert not [each for each in spelled if each in told]
    assert "Says < |im_end|>." in told and "Unknown tool '< /s>< |im_end|>'" in told
    assert json.loads(sent[1][0][2]["tool_calls"][0]["function"]["arguments"]) == {"text": "< \uff5c User\uff5c>"}


async def test_contexts_are_read_back_as_the_messages_that_they_were_written_from() -> None:
    tokens = ByteTokens()
    tools = [{"type": "function", "function": {"name": "look"}}]
    opening = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|im_end|> <think>é"}]
    ids = tokens.prompt(opening, tools)
    written: Sequence[str] = [
        'One.\n<tool_call>\n{"name": "look", "arguments": {"at": "<tool_call>"}}\n</tool_call>',
        "Two",
    ]
    for text, answer in zip(
        written, ({"role": "tool", "content": "</tool_call>"}, {"role": "user", "content": "?"}), strict=True
    ):
        ids = tokens.completion(ids, tokens.encode(text + IM_END)).applied_to(ids)
        ids = tokens.messages(ids, [], [answer], tools).applied_to(ids)
    read = await read_context(ids, tokens)
    assert [message["role"] for message in read] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert read[:2] == opening and read[2]["content"].strip() == "One." and read[4]["content"] == "Two"
    assert read[3]["tool_call_id"] == read[2]["tool_calls"][0]["id"] and read[3]["content"] == "</tool_call>"
    assert (await read_context(tokens.prompt(opening[1:], tools), tokens)) == opening[1:]
    assert Reply().content == ""


async def test_calls_are_read_back_whatever_the_text_before_them_spells() -> None:
    calls = [{"id": id, "function": {"name": "look", "arguments": {}}} for id in "ab"]
    thought = {"role": "assistant", "content": "Write <think> or <tool_call> first.", "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": id, "content": f"Seen {id}."} for id in "ab"]
    tokens = ByteTokens()
    read = await read_context(tokens.prompt([{"role": "user", "content": "Go."}, thought, *results], []), tokens)
    assert [(each["role"], each["content"]) for each in read[2:]] == [("tool", "Seen a."), ("tool", "Seen b.")]
    assert read[1]["content"] == thought["content"]
    assert [call["id"] for call in read[1]["tool_calls"]] == [each["tool_call_id"] for each in read[2:]]


class Asking:
    """A user who answers twice."""

    def __init__(self) -> None:
        self.replies = 0

    async def opening(self) -> str:
        return "Begin."

    async def reply(self, message: str) -> Said:
        self.replies += 1
        return Said(message="Go on.", done=self.replies == 3)

    def elicit(self, question: str) -> Elicited:
        raise NotImplementedError


async def test_attachments_go_with_the_turn_and_dropped_thinking_is_not_sent(tmp_path: Path) -> None:
    sent = list[list[dict[str, Any]]]()

    async def complete(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Reply:
        sent.append(messages)
        attached = {"reasoning": "<|s|>", "mark": len(sent), "content": [{"type": "thinking", "thinking": "Hm."}]}
        # The same words each time: what is attached is told apart by the turn, not by its text.
        return Reply(content="Well?", thinking="Hm.", attached=attached)

    servers = {"user": simulator(lambda task, seed: Asking())}
    for context in ("keep", "drop_previous"):
        engine = ChatEngine(name="own", complete=complete)
        made = environment(servers, user={"server": "user"}, thinking={"context": context})
        sent.clear()
        async with opened(made, servers) as gateway:
            await roll_out(
                Trace.begin(context, task(), Origin()),
                environment=made,
                gateway=gateway,
                policy_for=lambda session, made=made, engine=engine: engine.policy(session, made, task(), Origin()),
                tokens=engine.tokens(),
                limits=Limits(response_tokens=100_000),
                store=TraceStore(tmp_path / context),
            )
        own = [message for message in sent[2] if message["role"] == "assistant"]
        if context == "keep":
            assert [(message["mark"], message["reasoning"]) for message in own] == [(1, "<|s|>"), (2, "<|s|>")]
            assert own[0]["content"] == [{"type": "thinking", "thinking": "Hm."}]
        else:
            assert own == [{"role": "assistant", "content": "Well?"}] * 2


async def test_an_attachment_that_a_limit_has_cut_is_none_and_no_text() -> None:
    tokens = ByteTokens()
    for thinking, mark in (("", ""), ("Hm.", "\ud83d é"), ("Hm.", "x"), ("", "xy")):
        attached = {"mark": mark, "tool_calls": [{"id": "a"}]}
        ids = tokens.encode_reply(thinking=thinking, content="So.", calls=[], attached=attached)
        parsed = await tokens.parse(ids, ())
        assert attached_to(ids) == attached and (parsed.thinking.strip(), parsed.content.strip()) == (thinking, "So.")
        assert (
            attached_to(ids[: max(at for at, id in enumerate(ids) if id > 1 << 24)])
            == attached_to(tokens.encode("So."))
            == {}
        )


def test_names_for_an_api_are_apart_whatever_the_tools_are_called() -> None:
    def names(*tools: str) -> dict[str, str]:
        sent = {name: each for each, name in api_names(tools).items()}
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in sent.values()) and {*sent} == {*tools}
        return sent

    odd = ["a.b", "a/b", "a b", "é", "读取", "写入", "x" * 100, "x" * 99 + "y", "", "a\n", "x" * 64]
    first = names(*odd)
    assert first == names(*reversed(odd)) and first["x" * 64] == "x" * 64 and names("a.b")["a.b"] == "a_b"
    names(*odd, *(sent for sent in first.values() if sent not in odd))  # tools that are called what was made up
