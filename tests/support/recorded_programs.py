"""Conversations of real programs, recorded as the requests that they sent, and sent again in their order.

`python tests/support/recorded_programs.py NAME` plays the unchanged program and writes its requests into
`tests/third_party/programs/cassettes/NAME.jsonl`; `make programs` installs the programs.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2

ROOT = Path(__file__).parents[2]
CASSETTES = ROOT / "tests" / "third_party" / "programs" / "cassettes"
NODE = Path(sys.prefix) / "programs" / "node_modules" / ".bin"
DRIVERS = ROOT / "tests" / "third_party" / "clients"
_SENT = ("accept", "content-type", "mcp-protocol-version", "mcp-method", "mcp-name")
OPENCODE = {
    "autoupdate": False,
    "share": "disabled",
    "model": "local/policy",
    "small_model": "local/policy-small",
    "tools": dict.fromkeys(
        ("bash", "edit", "write", "read", "grep", "glob", "task", "todowrite", "todoread", "webfetch", "skill"), False
    ),
    "provider": {
        "local": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "local",
            "options": {"baseURL": "${model.url}", "apiKey": "${model.key}"},
            "models": {
                "policy": {"name": "policy", "tool_call": True, "limit": {"context": 100000, "output": 4096}},
                "policy-small": {"name": "policy-small"},
            },
        }
    },
    "mcp": {"world": {"type": "remote", "url": "${mcp.url}", "enabled": True}},
}


def driver(python: str, name: str, *more: str) -> dict[str, Any]:
    program = [f"{ROOT}/.venv-{python}/bin/python", str(DRIVERS / name)]
    return {"command": [*program, "${model.url}", "${mcp.url}", *more, "${prompt}"]}


PROGRAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai_agents_chat": ("", driver("mcp2", "openai_agents_program.py", "chat", "whole")),
    "openai_agents_chat_streamed": ("", driver("mcp2", "openai_agents_program.py", "chat", "streamed")),
    "openai_agents_responses": ("", driver("mcp2", "openai_agents_program.py", "responses", "streamed")),
    "pydantic_ai_messages": ("", driver("mcp1", "pydantic_ai_program.py", "messages")),
    "pydantic_ai_chat": ("", driver("mcp1", "pydantic_ai_program.py", "chat")),
    "langchain": ("", driver("mcp1", "langchain_program.py")),
    "codex": ("mcp__world__", {"preset": "codex"}),
    "claude_code": ("mcp__world__", {"preset": "claude_code"}),
    "opencode": (
        "world_",
        {
            "command": ["opencode", "run", "${prompt}"],
            "files": {"opencode.json": json.dumps(OPENCODE)},
            "env": {"OPENCODE_DISABLE_MODELS_FETCH": "1", "HTTPS_PROXY": "http://127.0.0.1:9"},
        },
    ),
}
"""By name, what it puts before the names of tools, and how it is started."""


def agent(name: str) -> dict[str, Any]:
    return {"use": "mcp_rollout.rollout.programs.program:Program", "with": PROGRAMS[name][1]}


def script(name: str, turns: int = 0) -> list[str]:
    """What a model says to a program: thoughts, one call and two, numbers as few would write them, an answer.

    Args:
        turns: Further turns with a call.
    """
    from told import note

    tool = PROGRAMS[name][0] + "note"
    begun = "<think>\nHm.\n</think>\n\nI note  it.  \n" + note('{"text": "plum",  "size": 3.0}', tool)
    two = note('{"text": "a", "size": 1e2}', tool) + "\n" + note('{"size": 2, "text":\n "b\\u00e4"}', tool)
    more = [*HARD.get(name, {}).values()] if turns else []
    more = [text.format(tool=tool) for text in more] if more else []
    more += [f"Then number {at}.\n" + note(f'{{"text": "n{at}", "size": {at}.50}}', tool) for at in range(turns)]
    return [begun, two, *more, "<think>\nDone.\n</think>\n\nNoted (caf\u00e9).  \nAnswer: 45"]


MALFORMED = 'So.\n<tool_call>\n{{{{"name": "{tool}", "arguments": {{{{"text": \n</tool_call>'
UNKNOWN = '<tool_call>\n{{"name": "nosuch", "arguments": {{"x": 1e3}}}}\n</tool_call>'
THOUGHT = "<think>\nOnly a thought.\n</think>"
HARD: dict[str, dict[str, str]] = {
    "openai_agents_chat": {"malformed": MALFORMED},
    "openai_agents_chat_streamed": {"malformed": MALFORMED},
    "openai_agents_responses": {"malformed": MALFORMED},
    "codex": {"malformed": MALFORMED, "unknown": UNKNOWN},
    "claude_code": {"malformed": MALFORMED, "unknown": UNKNOWN, "thought": THOUGHT},
    "opencode": {"malformed": MALFORMED, "unknown": UNKNOWN},
    "pydantic_ai_chat": {"malformed": MALFORMED, "unknown": UNKNOWN, "thought": THOUGHT},
    "pydantic_ai_messages": {"malformed": MALFORMED, "unknown": UNKNOWN, "thought": THOUGHT},
    "langchain": {"unknown": UNKNOWN},
}
"""What each survives; the others end with it, which is scored."""
RETRY = {"openai_agents_chat", "codex", "opencode", "pydantic_ai_chat", "pydantic_ai_messages", "langchain"}
"""Programs that ask again where a connection breaks before, or within, an answer."""


def cutting(every: int) -> Callable[[], None]:
    """Have the endpoint break the connection in the middle of each so many answers of the model; returns the repair."""
    from mcp_rollout.rollout.programs.endpoint import ProgramEndpoint

    answer, count = ProgramEndpoint.__call__, [0]

    async def broken(self: ProgramEndpoint, scope: Any, receive: Any, send: Any) -> None:
        _, path = scope["state"]["mcp_wire.bearer"]
        count[0] += scope["method"] == "POST" and "mcp" not in path
        if count[0] % every or "mcp" in path:
            return await answer(self, scope, receive, send)
        sent: list[Any] = []

        async def kept(message: Any) -> None:
            sent.append(message)

        await answer(self, scope, receive, kept)
        await send(sent[0])
        body = b"".join(message.get("body", b"") for message in sent[1:])
        await send({"type": "http.response.body", "body": body[: len(body) // 2 * (count[0] % 2)], "more_body": True})
        raise ConnectionAbortedError("cut by the test")

    ProgramEndpoint.__call__ = broken

    def repair() -> None:
        ProgramEndpoint.__call__ = answer

    return repair


async def replaying(offered: Any, name: str) -> None:
    """A function that sends what a program has sent, as `told.played` plays it."""
    root = offered.model_url.removesuffix("/v1")
    async with httpx2.AsyncClient(timeout=60) as http:
        for sent in requests(name):
            answer = await http.post(f"{root}/{sent['path']}", json=sent["body"], headers=sent["headers"])
            assert answer.status_code in (200, 202), answer.text


def requests(name: str) -> Iterator[dict[str, Any]]:
    with (CASSETTES / f"{name}.jsonl").open() as file:
        yield from map(json.loads, file)


def recording(written: list[str]) -> None:
    """Have the endpoint keep each POST that it answers."""
    from mcp_rollout.rollout.programs.endpoint import HOME, ProgramEndpoint

    answer = ProgramEndpoint.__call__

    async def kept(self: ProgramEndpoint, scope: Any, receive: Any, send: Any) -> None:
        route, path = scope["state"]["mcp_wire.bearer"]
        parts: list[bytes] = []

        async def received() -> Any:
            message = await receive()
            parts.append(message.get("body", b""))
            if message["type"] == "http.request" and not message.get("more_body"):
                raw = b"".join(parts).replace((route.home or "?").encode(), HOME)
                headers = {key.decode(): value.decode() for key, value in scope["headers"] if key.decode() in _SENT}
                written.append(json.dumps({"path": path, "headers": headers, "body": json.loads(raw)}))
            return message

        await answer(self, scope, received if scope["method"] == "POST" else receive, send)

    ProgramEndpoint.__call__ = kept


async def record(name: str) -> None:
    from told import Engine, played

    from mcp_rollout.rollout.loop.limits import Limits

    written: list[str] = []
    recording(written)
    limits = Limits(response_tokens=200_000, context_tokens=200_000)
    engine = Engine(script(name), asides=("A title",))
    made = await played(Path(tempfile.mkdtemp()), (), agent=agent(name), limits=limits, engine=engine)
    assert made.trace.failure is None, made.trace.failure
    (CASSETTES / f"{name}.jsonl").write_text("\n".join(written) + "\n")
    sys.stdout.write(f"{name}: {len(written)} requests, {made.trace.stop_reason}, {made.differences()} differ\n")


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT)]
    os.environ["PATH"] = f"{NODE}:{os.environ['PATH']}"
    anyio.run(record, sys.argv[1])
