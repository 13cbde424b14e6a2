"""Fixtures of probes: small programs for tools that take code, and a page for tools that take an address."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import SocketAttribute, SocketStream

from mcp_rollout.gateway.types import ToolDefinition
from mcp_rollout.rollout.doctor.tool_words import Sort, sort_of, words_of

STATEMENTS = 4
"""Statements of a program, one per call."""


def language_of(tool: ToolDefinition, name: str, schema: Mapping[str, Any]) -> str:
    """The language that an argument is written in; empty for ordinary text."""
    words, tool_words = set(words_of(name)), set(words_of(tool.name))
    said = f"{tool.name} {tool.description} {schema.get('description', '')}".lower()
    if {"query", "sql", "statement"} & words and re.search(r"\bsql|select|duckdb|sqlite|postgres", said):
        return "sql"
    if {"code", "script", "source"} & words and "python" in said:
        return "python"
    if {"code", "script"} & words and re.search(r"javascript|node", said):
        return "javascript"
    if {"command", "cmd", "script"} & words and ("bash" in tool_words or re.search(r"\b(bash|shell)\b", said)):
        return "bash"
    return ""


def statement(language: str, tool: ToolDefinition, word: str, step: int) -> str:
    """A program that looks, writes, looks again and writes more; a tool for one kind of statement gets only those."""
    if language == "python":
        look = f"print({word!r} in globals())"
        return (look, f"{word} = globals().get({word!r}, 0) + 1\nprint({word})", look, f"print({word})")[step]
    if language == "javascript":
        look = f"console.log(typeof globalThis.{word})"
        return (look, f"globalThis.{word} = 1", look, look)[step]
    if language == "bash":
        look = "cat probe.txt || true"
        return (look, f"echo {word} >> probe.txt", look, "ls")[step]
    kind = sort_of(tool)
    select, create = f"SELECT * FROM {word}", f"CREATE TABLE {word} (id INTEGER, note TEXT)"
    insert = f"INSERT INTO {word} VALUES (1, '{word}')"
    if "create" in words_of(tool.name):
        return (create, create, create, create)[step]
    if kind is Sort.WRITE or ({"execute", "update"} & set(words_of(tool.name)) and "query" not in words_of(tool.name)):
        return (insert, insert, insert, insert)[step]
    if kind is Sort.READ and re.search(r"\bselect\b", tool.description, re.I):
        return ("SELECT 1 AS one", select, select, select)[step]
    return ("SELECT 1 AS one", create, insert, select)[step]


_BODY = b"<html><head><title>Page</title></head><body><article><h1>Page</h1><p>One page.</p></article></body></html>"
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (
    len(_BODY),
    _BODY,
)
_REQUEST_TIMEOUT_S = 5.0


@asynccontextmanager
async def loopback_page() -> AsyncGenerator[int]:
    """Serve the page at every path, and yield the port."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")

    async def answer(stream: SocketStream) -> None:
        async with stream:
            with anyio.move_on_after(_REQUEST_TIMEOUT_S):
                try:
                    await stream.receive()
                    await stream.send(_ANSWER)
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    pass

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        yield int(listener.extra(SocketAttribute.local_port))
        tasks.cancel_scope.cancel()
