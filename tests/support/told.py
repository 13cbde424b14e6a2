"""Programs for the tests: an ordinary client of chat completions and MCP, and what their engine saw and sampled."""

from __future__ import annotations

import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
from anyio.abc import SocketStream
from mcp import Client
from mcp.server.mcpserver import MCPServer
from sampled import respelled
from tool_formats import builder_for, tokenizer_for
from worlds import ROLE, environment, opened, task

from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.chat import ChatEngine
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.programs.program import Offered
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore, read_traces
from mcp_rollout.rollout.types import Completion, FinishReason, Policy

NOTE = '<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def note(arguments: str = '{"text": "plum",  "size": 3.0}', name: str = "note") -> str:
    """A call as a model writes it."""
    return NOTE.format(name=name, arguments=arguments)


@dataclass
class Engine:
    """Says the texts in their order, in spellings of its own, and keeps a log of each request."""

    texts: Sequence[str]
    seed: int = 0
    log: list[tuple[list[int], list[int]]] = field(default_factory=list)
    gate: Callable[[], Any] | None = None
    """Awaited before each generation."""
    asides: Sequence[str] = ()
    """What it says to requests without the world's tools, in place of the texts."""
    beside: list[tuple[list[int], list[int]]] = field(default_factory=list)
    """The log of these."""

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        read = list(ids)
        if self.gate is not None:
            await self.gate()
        tokenizer = tokenizer_for("hermes")
        is_beside = bool(self.asides) and "<tools>" not in tokenizer.decode(read)
        texts, log = (self.asides, self.beside) if is_beside else (self.texts, self.log)
        text = texts[len(log)] if len(log) < len(texts) else "Nothing more."
        sampled = respelled(tokenizer, text, random.Random(self.seed * 1000 + len(log)))
        whole = [*sampled, tokenizer.convert_tokens_to_ids("<|im_end|>")]
        sampled = whole[:max_tokens]
        log.append((read, list(sampled)))
        logprobs = [-0.25 - at / 8192 for at in range(len(sampled))]
        reason = FinishReason.STOP if sampled == whole else FinishReason.LENGTH
        return Completion(ids=sampled, logprobs=logprobs, finish_reason=reason)


def desk(notes: list[tuple[str, float]]) -> dict[str, MCPServer]:
    """`note` writes into a list; `reset` and `score` are the harness's."""
    server = MCPServer("desk", log_level="ERROR")

    @server.tool()
    def note(text: str, size: float = 1.0) -> str:
        """Take a note."""
        notes.append((text, size))
        return f"Noted: {text}"

    @server.tool(name="reset", meta={ROLE: "reset"})
    def reset(task: str, seed: int) -> dict[str, Any]:
        return {}

    @server.tool(name="score", meta={ROLE: "score"})
    def score(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"score": float(len(notes)), "parts": {}}

    return {"desk": server}


@dataclass
class Played:
    trace: Trace
    engine: Engine
    notes: list[tuple[str, float]]

    def differences(self) -> int:
        """Positions of all turns' contexts and completions that differ from what the engine saw and sampled."""
        return differences(self.trace, self.engine.log)


def differences(trace: Trace, log: Sequence[tuple[list[int], list[int]]]) -> int:
    from mcp_rollout.rollout.verl.output import to_outputs

    # verl's batch has what the trace has, which is compared with the engine's log.
    for sample, segment in zip(to_outputs(trace, ()), trace.segments, strict=True):
        assert (sample.prompt_ids, sample.response_ids) == (segment.prompt_ids, segment.response_ids)
        assert (sample.response_mask, sample.response_logprobs) == (segment.loss_mask, segment.logprobs)
    left, wrong = list(log), 0
    for segment in trace.segments:
        whole, base = segment.prompt_ids + segment.response_ids, len(segment.prompt_ids)
        for number in segment.turns_sampled:
            spans = [span for span in segment.spans if span.turn == number and span.kind.is_sampled]
            start, end = base + spans[0].start, base + spans[-1].end
            read, sampled = left.pop(0)
            for mine, its in ((whole[:start], read), (whole[start:end], sampled)):
                wrong += sum(one != other for one, other in zip(mine, its, strict=False)) + abs(len(mine) - len(its))
            assert segment.loss_mask[spans[0].start : spans[-1].end] == [1] * len(sampled)
            assert segment.logprobs[spans[0].start : spans[-1].end] == [-0.25 - at / 8192 for at in range(len(sampled))]
    assert not left, f"{len(left)} generations are in no segment"
    return wrong


def generations(trace: Trace) -> list[tuple[list[int], list[int]]]:
    """What the trace says that each turn read and sampled."""
    found: list[tuple[list[int], list[int]]] = []
    for segment in trace.segments:
        whole, base = segment.prompt_ids + segment.response_ids, len(segment.prompt_ids)
        for number in segment.turns_sampled:
            spans = [span for span in segment.spans if span.turn == number and span.kind.is_sampled]
            start, end = base + spans[0].start, base + spans[-1].end
            found.append((whole[:start], whole[start:end]))
    return found


async def played(
    directory: Path,
    texts: Sequence[str],
    *,
    run: str | None = None,
    agent: dict[str, Any] | None = None,
    limits: Limits | None = None,
    engine: Engine | None = None,
    servers: dict[str, MCPServer] | None = None,
    row: Task | None = None,
    trajectory: str = "a1b2c3d4e5",
    chat: ChatEngine | None = None,
    **fields: Any,
) -> Played:
    """One trajectory of a program, with a real tokenizer.

    Args:
        run: A function of the module `told`, as in `Function`.
        agent: The agent's section instead.
        chat: A chat API in the engine's place.
    """
    from mcp_rollout.rollout.tokens.verl_builder import ContinuousTokens

    tokenizer, notes = tokenizer_for("hermes"), list[tuple[str, float]]()
    model = engine or Engine(texts)

    async def policy_for(session: Session) -> Policy:
        return model if chat is None else await chat.policy(session, made, row or task(), Origin())

    worlds = servers or desk(notes)
    own = agent or {"use": "mcp_rollout.rollout.programs.program:Function", "with": {"use": f"told:{run}"}}
    reward = {"server": "desk"} if servers is None else {}
    made = environment(worlds, agent=own, **{"reward": reward, **fields})
    async with opened(made, worlds) as gateway:
        trace = await roll_out(
            Trace.begin(trajectory, row or task(), Origin()),
            environment=made,
            gateway=gateway,
            policy_for=policy_for,
            tokens=chat.tokens() if chat else ContinuousTokens(builder_for("hermes", tokenizer), tokenizer, "hermes"),
            limits=limits or Limits(response_tokens=100_000),
            store=TraceStore(directory),
        )
    assert trace in list(read_traces(directory))
    return Played(trace, model, notes)


def plain_program() -> dict[str, Any]:
    """The agent's section of a program that plays any task to its end, of the standard library alone."""
    odd = Path(__file__).with_name("odd_program.py")
    command = [sys.executable, str(odd), "plain", "${model.url}", "${mcp.url}", "${prompt}"]
    own = {"command": command, "frozen": {"at [0-9T-]+": "at noon"}}
    return {"use": "mcp_rollout.rollout.programs.program:Program", "with": own}


SEEN: list[Any] = []
"""What the functions below leave for their test, which clears it."""


@dataclass
class Conversation:
    """A client of both faces, as libraries write them."""

    offered: Offered
    http: httpx2.AsyncClient
    world: Client
    stream: bool = False
    messages: list[dict[str, Any]] = field(default_factory=list)
    prefix: str = ""
    """Before the names of the world's tools."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    model: str = "policy"

    async def post(self, **body: Any) -> httpx2.Response:
        given = {"model": self.model, "messages": self.messages, "tools": self.tools, "stream": self.stream, **body}
        # With escapes, so that a text may have half of a surrogate pair.
        body = json.dumps(given)
        headers = {"content-type": "application/json"}
        return await self.http.post(f"{self.offered.model_url}/chat/completions", content=body, headers=headers)

    async def turn(self, **body: Any) -> dict[str, Any]:
        """Ask the model, and keep what it says as it says it."""
        response = await self.post(**body)
        assert response.status_code == 200, response.text
        message = read(response) if body.get("stream", self.stream) else response.json()["choices"][0]["message"]
        self.messages.append(message)
        return message

    async def act(self, message: dict[str, Any]) -> None:
        """Make the calls of a message, and add their results."""
        for call in message.get("tool_calls") or ():
            name, written = call["function"]["name"].removeprefix(self.prefix), call["function"]["arguments"]
            try:
                result = await self.world.call_tool(name, json.loads(written))
                text = "".join(block.text for block in result.content)
            except ValueError as error:
                text = f"invalid arguments {written!r}: {error}"
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})


def read(response: httpx2.Response) -> dict[str, Any]:
    """The message of a streamed answer, put together as clients do it."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    for choice in (choice for line in lines[:-1] for choice in json.loads(line)["choices"]):
        message["content"] += choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls") or ():
            message.setdefault("tool_calls", []).append({key: call[key] for key in ("id", "type", "function")})
    return message


@contextlib.asynccontextmanager
async def conversing(offered: Offered, *, mode: str = "auto", **options: Any) -> AsyncIterator[Conversation]:
    async with httpx2.AsyncClient(timeout=30) as http, Client(offered.mcp_url, mode=mode) as world:
        listed = (await world.list_tools()).tools
        prefix = options.get("prefix", "")
        tools = [
            {
                "type": "function",
                "function": {
                    "name": prefix + each.name,
                    "description": each.description,
                    "parameters": each.input_schema,
                },
            }
            for each in listed
        ]
        messages = [{"role": "system", "content": "Take notes."}, {"role": "user", "content": offered.prompt}]
        yield Conversation(offered, http, world, messages=messages, tools=tools, **options)


async def plain(offered: Offered, **options: Any) -> None:
    """The loop of every agent."""
    async with conversing(offered, **options) as talk:
        while (message := await talk.turn()).get("tool_calls"):
            await talk.act(message)
        SEEN.append(talk.messages)


async def careless(offered: Offered) -> None:
    """Writes the history anew as programs in JavaScript do: numbers, null for no text, reasoning dropped."""
    async with conversing(offered, prefix="mcp__desk__") as talk:
        while (message := await talk.turn()).get("tool_calls"):
            await talk.act(message)
            for call in message["tool_calls"]:
                try:
                    arguments = json.loads(call["function"]["arguments"])
                    shorter = {key: int(each) if each == 3.0 else each for key, each in arguments.items()}
                    call["function"]["arguments"] = json.dumps(shorter, sort_keys=True)
                except ValueError:
                    call["function"].update(name="invalid", arguments='{"tool": "note"}')
            message["content"] = message["content"] or None
            message.pop("reasoning_content", None)


async def repeating(offered: Offered) -> None:
    """Sends each request several times: at once, and again after the answer."""
    async with conversing(offered) as talk:
        while True:
            bodies: list[Any] = []

            async def once(bodies: list[Any] = bodies) -> None:
                bodies.append((await talk.post()).json()["choices"][0]["message"])

            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(once)
            await once()
            assert all(each == bodies[0] for each in bodies)
            talk.messages.append(bodies[0])
            if not bodies[0].get("tool_calls"):
                return
            await talk.act(bodies[0])


async def hasty(offered: Offered) -> None:
    """Makes the calls of an answer, and asks for it again, as where the stream breaks behind them."""
    async with conversing(offered) as talk:
        while True:
            message = await talk.turn()
            before = len(talk.messages) - 1
            if not message.get("tool_calls"):
                return
            await talk.act(message)
            results = talk.messages[before:]
            del talk.messages[before:]
            assert await talk.turn() == message
            await talk.act(message)
            assert talk.messages[before:] == results


async def withdrawing(offered: Offered) -> None:
    """Drops an answer without text and calls, and asks again with a sentence more."""
    async with conversing(offered) as talk:
        await talk.act(await talk.turn())
        await talk.turn()
        talk.messages.pop()
        talk.messages[-1]["content"] += "\nSay something."
        await talk.turn()


SUMMARY = "So far two plums are noted, and the answer is not given yet."


async def compacting(offered: Offered, ask: str = "Summarise: ", train: bool = False) -> None:
    """Has its conversation summarised by another one, whose text it goes on with."""
    named = {"metadata": {"mcp-rollout-train": "true"}} if train else {}
    async with conversing(offered) as talk:
        await talk.act(await talk.turn())
        asked = [{"role": "user", "content": ask + json.dumps(talk.messages)}]
        title = await talk.post(messages=[{"role": "user", "content": "A title?"}], tools=[], model="policy-small")
        assert title.status_code == 200
        summary = await talk.post(messages=asked, tools=[], **named)
        if summary.status_code != 200:
            return
        said = summary.json()["choices"][0]["message"]["content"]
        talk.messages[1:] = [{"role": "user", "content": f"This session continues another: {said}"}]
        await talk.act(await talk.turn(**named))
        await talk.turn()


async def checkpointing(offered: Offered) -> None:
    """Asks for a summary at the end of its own conversation, without tools, and begins anew with it."""
    async with conversing(offered) as talk:
        await talk.act(await talk.turn())
        asked = [*talk.messages, {"role": "user", "content": "CONTEXT CHECKPOINT"}]
        said = (await talk.post(messages=asked, tools=[])).json()["choices"][0]["message"]["content"]
        talk.messages[2:] = [{"role": "user", "content": said}]
        await talk.act(await talk.turn())
        await talk.turn()


async def raising(offered: Offered) -> None:
    async with conversing(offered) as talk:
        await talk.turn()
        raise LookupError("no tool of this name")


async def persistent(offered: Offered, most: int) -> None:
    """Goes on after the end."""
    async with conversing(offered) as talk:
        for _ in range(most):
            response = await talk.post()
            SEEN.append((response.status_code, response.json()))
            if response.status_code != 200:
                continue
            message = response.json()["choices"][0]["message"]
            talk.messages.append(message)
            await talk.act(message)


async def free_calls(offered: Offered) -> None:
    """Calls the world by itself, before, beside and after the policy's calls."""
    async with conversing(offered) as talk:
        SEEN.append((await talk.world.call_tool("note", {"text": "early"})).content[0].text)
        message = await talk.turn()
        await talk.world.call_tool("note", {"text": "mine"})
        await talk.act(message)
        SEEN.append((await talk.world.call_tool("reset", {"task": "t", "seed": 1})).content[0].text)
        await talk.turn()


GATES: dict[str, anyio.Event] = {}
"""What holds an engine until a program has seen something."""


async def watching(offered: Offered, dialect: str) -> None:
    """Streams, and lets the engine sample once an event has come that keeps it waiting."""
    async with httpx2.AsyncClient(timeout=30) as http, Client(offered.mcp_url) as world:
        (tool,) = (await world.list_tools()).tools
        name, schema, user = tool.name, tool.input_schema, {"role": "user", "content": "Begin."}
        body: dict[str, Any] = {
            "chat/completions": {
                "messages": [user],
                "tools": [{"type": "function", "function": {"name": name, "parameters": schema}}],
            },
            "responses": {"input": [user], "tools": [{"type": "function", "name": name, "parameters": schema}]},
            "messages": {"messages": [user], "max_tokens": 900, "tools": [{"name": name, "input_schema": schema}]},
        }[dialect]
        sent = {"model": "policy", "stream": True, **body}
        async with http.stream("POST", f"{offered.model_url}/{dialect}", json=sent) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    SEEN.append(json.loads(line.removeprefix("data: ")))
                    GATES["seen"].set()


async def refused(offered: Offered, bodies: list[dict[str, Any]]) -> None:
    """Asks for what is not given, then plays. `HALF` stands for half of a surrogate pair."""
    async with conversing(offered) as talk:
        for body in json.loads(json.dumps(bodies).replace("HALF", "\\ud800")):
            response = await talk.post(**body)
            SEEN.append((response.status_code, response.json()["error"]["message"]))
        await talk.turn()


async def writing(offered: Offered, requests: list[list[str]]) -> None:
    """Takes a turn, then sends these bodies to these paths as they are."""
    async with conversing(offered) as talk:
        await talk.turn()
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        for path, body in requests:
            response = await talk.http.post(f"{offered.model_url[:-2]}{path}", content=body, headers=headers)
            SEEN.append((response.status_code, response.text))


async def telling(offered: Offered, messages: list[dict[str, Any]]) -> None:
    """Begins with a conversation that it had elsewhere."""
    async with conversing(offered) as talk:
        await talk.turn(messages=messages)


def _head_and_body(talk: Conversation) -> tuple[bytes, bytes]:
    """The conversation's request for an answer, without a library of a client's."""
    body = json.dumps({"model": "policy", "messages": talk.messages, "tools": talk.tools}).encode()
    path = urlsplit(talk.offered.model_url).path
    return b"POST %s/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(body)), body


async def uploading(offered: Offered) -> None:
    """Begins more requests than are taken, and ends their bodies once one is answered."""
    is_answered = anyio.Event()
    async with conversing(offered) as talk:
        head, body = _head_and_body(talk)

        async def once() -> None:
            async with await anyio.connect_tcp("127.0.0.1", urlsplit(offered.model_url).port or 0) as stream:
                await stream.send(head + body[:10])
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(rest, stream)
                    SEEN.append(int((await stream.receive()).split()[1]))
                    is_answered.set()

        async def rest(stream: SocketStream) -> None:
            await is_answered.wait()
            with contextlib.suppress(anyio.BrokenResourceError):  # it was refused
                await stream.send(body[10:])

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for _ in range(18):
                    tasks.start_soon(once)


async def leaving(offered: Offered) -> None:
    """Gives a request up more often than requests may be under way, and asks again while it is sampled."""
    async with conversing(offered) as talk:
        head, body = _head_and_body(talk)
        for _ in range(40):
            async with await anyio.connect_tcp("127.0.0.1", urlsplit(offered.model_url).port or 0) as stream:
                await stream.send(head + body)
        again = {"model": "policy", "messages": talk.messages, "tools": talk.tools, "stream": True}
        try:
            with anyio.fail_after(30):
                while True:  # the endpoint notices each end in its own time
                    async with talk.http.stream(
                        "POST", f"{offered.model_url}/chat/completions", json=again
                    ) as response:
                        if response.status_code == 200:
                            GATES["seen"].set()
                            SEEN.append((await response.aread()).decode())
                            return
        finally:
            GATES["seen"].set()


async def crowding(offered: Offered) -> None:
    """Has more requests under way than are taken, each with another conversation."""
    async with conversing(offered) as talk:
        opening = [*talk.messages]

        async def once(number: int) -> None:
            more = {"role": "user", "content": f"Number {number}"}
            response = await talk.post(messages=[*opening, more] if number else opening)
            SEEN.append(response.status_code)
            if len(SEEN) == 4:  # as many as are refused
                GATES["seen"].set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(once, 0)
            await GATES["begun"].wait()
            for number in range(1, 21):
                tasks.start_soon(once, number)


async def half_heard(offered: Offered) -> None:
    """Kept the text of an answer whose stream broke before the call, and asks again with it."""
    async with conversing(offered) as talk:
        whole = (await talk.post()).json()["choices"][0]["message"]
        kept = {"role": "assistant", "content": whole["content"]}
        rest = (await talk.post(messages=[*talk.messages, kept])).json()["choices"][0]["message"]
        SEEN.append(rest)
        talk.messages.append({**kept, "tool_calls": rest["tool_calls"]})
        await talk.act(rest)
        await talk.turn()


async def rounding(offered: Offered) -> None:
    """Reads numbers as doubles, as JavaScript does."""
    async with conversing(offered) as talk:
        message = await talk.turn()
        for call in message["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            arguments["size"] = float(arguments["size"])
            call["function"]["arguments"] = json.dumps(arguments)
        await talk.act(message)
        await talk.turn()
