"""Which calls a probe may make, and with what arguments."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from gateway.schemas.arguments import prepare
from gateway.types import ToolDefinition
from rollout.engines.random_arguments import plain_arguments

_MOST = 12
"""The most calls of each kind, so that a probe ends within seconds."""
_READING = frozenset(
    "cat count current describe diff exists fetch find get has head history info inspect is list load lookup ls look "
    "peek print query read recall retrieve search select show stat status summary tail tree view what which who".split()
)
"""First words of the names of tools that mostly read. They decide the order of calls of unannotated tools only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOption:
    """A call that the user allows by naming it: `--call [SERVER/]TOOL=JSON`."""

    server: str | None
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeCall:
    """One call that a probe makes."""

    tool: str
    """The exposed name."""
    arguments: dict[str, Any]
    """`${lease.dir}` in a string stands for the directory of the lease that makes the call."""
    read_only: bool = False
    """Whether the tool is annotated read-only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The calls of a probe. `reads` may be repeated freely; `writes` may change the server's state."""

    reads: tuple[ProbeCall, ...]
    writes: tuple[ProbeCall, ...]
    withheld: tuple[str, ...]
    """Tools that may write and that the user did not allow."""
    refused: tuple[str, ...]
    """Names of the tools whose schemas refuse the arguments, so that they are not called, each with the reasons."""
    only_reads: bool
    """Whether every tool of the server is annotated read-only."""
    word: str
    """The argument of tools that take free text."""


def new_word() -> str:
    """Make a word that no server knows, so that an answer with it shows what a probe wrote."""
    return f"probe{uuid4().hex[:6]}"


def plan_calls(
    server: str,
    tools: Collection[ToolDefinition],
    options: Iterable[CallOption],
    *,
    word: str,
    allow_writes: bool,
    as_sent: bool = False,
) -> Plan:
    """Choose the calls of a server's tools: those that are annotated read-only, and others if the user allows them.

    Args:
        options: Calls that the user allows; `{word}` in their strings stands for `word`.
        word: The argument of tools that take free text.
        allow_writes: Whether every tool may be called.
        as_sent: Whether arguments are sent that the tool's schema refuses (`calls.arguments`).
    """
    given: dict[str, list[dict[str, Any]]] = {}
    for call in options:
        if call.server in (None, server):
            arguments: Any = json.loads(json.dumps(call.arguments).replace("{word}", word))
            given.setdefault(call.tool, []).append(arguments)
    reads: list[ProbeCall] = []
    writes: list[ProbeCall] = []
    withheld: list[str] = []
    refused: list[str] = []
    # Calls of the user first, since their arguments make sense.
    for tool in sorted(tools, key=lambda tool: not _arguments_of(tool, given)):
        arguments = _arguments_of(tool, given)
        if not (arguments or tool.read_only or allow_writes):
            withheld.append(tool.exposed_name)
            continue
        # The annotation of a tool that the user named is not relied on: the user asks what the call does.
        trusted = tool.read_only and not arguments
        kind = reads if trusted or _sounds_like_reading(tool.name) else writes
        for each in arguments or [plain_arguments(tool.input_schema, word)]:
            if faults := argument_faults(tool, each, as_sent=as_sent):
                refused.append(f"{tool.exposed_name}: {'; '.join(faults)}")
                continue
            kind.append(ProbeCall(tool=tool.exposed_name, arguments=each, read_only=tool.read_only))
    return Plan(
        reads=tuple(reads[:_MOST]),
        writes=tuple(writes[:_MOST]),
        withheld=tuple(withheld),
        refused=tuple(refused),
        only_reads=all(tool.read_only for tool in tools),
        word=word,
    )


def argument_faults(tool: ToolDefinition, arguments: dict[str, Any], *, as_sent: bool) -> list[str]:
    """Reasons why the gateway would not send these arguments; empty where it would."""
    return prepare(tool, arguments, as_sent=as_sent).faults


def suggested(server: str, tools: Iterable[ToolDefinition]) -> tuple[str, ...]:
    """The `--call` option of each tool that lets the probes call it, quoted for a shell."""
    calls = [
        (tool.name, json.dumps(plain_arguments(tool.input_schema, "{word}"), ensure_ascii=False)) for tool in tools
    ]
    return tuple(f"--call {shlex.quote(f'{server}/{name}={arguments}')}" for name, arguments in calls)


def _arguments_of(tool: ToolDefinition, given: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return given.get(tool.name) or given.get(tool.exposed_name) or []


def _sounds_like_reading(name: str) -> bool:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    return bool(words) and words[0].lower() in _READING
