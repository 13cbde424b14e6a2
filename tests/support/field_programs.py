"""Plays what programs do in the world: the steps of a case of tests/field/programs, as an ordinary client."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import told
from told import Conversation, Engine, Played, conversing, played

from mcp_rollout.rollout.engines.chat import ChatEngine, Reply
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.programs.program import Offered
from mcp_rollout.rollout.types import Message

CALL = "$call"
"""In a step, the id of the first call of the last answer that had one."""


async def steps(offered: Offered, does: Sequence[dict[str, Any]], tools: Sequence[str]) -> None:
    """Do the steps, and leave a record of each answer in `told.SEEN`."""
    last: Message = {}
    async with conversing(offered) as talk:
        talk.tools += [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]
        for step in does:
            if step.get("raise"):
                raise LookupError(step["raise"])
            if "ask" in step:
                message = await _asked(talk, json.loads(json.dumps(step).replace(CALL, _id(last))))
                last = message if message.get("tool_calls") else last
            elif step["act"] is None:
                await talk.act(talk.messages[-1])
            elif "call" in step["act"]:  # of the program's own making, beside the conversation
                await talk.world.call_tool("note", step["act"]["call"])
            else:  # results without, or in place of, the world's
                for call in talk.messages[-1]["tool_calls"][: step["act"].get("results", 9)]:
                    talk.messages.append({"role": "tool", "tool_call_id": call["id"], "content": step["act"]["gives"]})


async def _asked(talk: Conversation, step: Mapping[str, Any]) -> Message:
    dialect, ask = step.get("dialect", "chat/completions"), step["ask"]
    body = {"model": "policy", "tools": talk.tools, "messages": talk.messages} | ask
    if dialect != "chat/completions":
        key = "parameters" if dialect == "responses" else "input_schema"
        named = [tool["function"] for tool in body["tools"]]
        own = [{"type": "function", "name": each["name"], key: each["parameters"]} for each in named]
        body = {"input" if dialect == "responses" else "messages": talk.messages[1:], **ask}
        body |= {"model": "policy", "tools": own}
    response = await talk.http.post(f"{talk.offered.model_url}/{dialect}", json=body, headers=step.get("headers"))
    document = _document(response.text, dialect) if response.status_code == 200 else response.json()
    told.SEEN.append((response.status_code, document, response.text))
    if response.status_code != 200 or dialect != "chat/completions":
        return {}
    message = told.read(response) if body.get("stream") else document["choices"][0]["message"]
    if "messages" not in ask:
        talk.messages.append(message)
    return message


def _id(message: Message) -> str:
    return next((str(call["id"]) for call in message.get("tool_calls") or ()), "")


def _document(text: str, dialect: str) -> dict[str, Any]:
    """An answer in one piece, or what a stream says of its end."""
    if not text.startswith(("data:", "event:")):
        return json.loads(text)
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    if dialect == "responses":
        return events[-1]["response"]
    if dialect == "messages":
        return next(event["delta"] for event in events if event["type"] == "message_delta")
    return next(event for event in events if event["choices"] and event["choices"][0]["finish_reason"])


def finish(document: Mapping[str, Any]) -> str:
    """How an answer ended, in the words of its dialect."""
    if "choices" in document:
        return str(document["choices"][0]["finish_reason"])
    details = document.get("incomplete_details") or {}
    return str(document.get("stop_reason") or details.get("reason") or document.get("status"))


async def play(directory: Path, given: Mapping[str, Any]) -> tuple[Played, list[list[str]]]:
    """Play a case; returns the names of the tools that a chat API got with each request as well."""
    own = {"use": "field_programs:steps", "arguments": {"does": given["does"], "tools": given.get("tools", [])}}
    agent = {"use": "mcp_rollout.rollout.programs.program:Function", "with": own}
    limits, offered = Limits(**{"response_tokens": 100_000, **given.get("limits", {})}), list[list[str]]()
    texts = [text.strip() for text in given["says"]]

    async def complete(messages: list[Message], tools: list[dict[str, Any]]) -> Reply:
        offered.append([tool["function"]["name"] for tool in tools])
        return Reply(content=texts[len(offered) - 1])

    chat = ChatEngine(name="api", complete=complete) if given.get("behind") == "chat" else None
    made = await played(directory, (), agent=agent, engine=Engine(texts), limits=limits, chat=chat)
    return made, offered
