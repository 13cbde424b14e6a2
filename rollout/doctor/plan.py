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
"""Calls of each kind: a probe has to be over in seconds."""
_READING = frozenset(
    "cat count current describe diff exists fetch find get has head history info inspect is list load lookup ls look "
    "peek print query read recall retrieve search select show stat status summary tail tree view what which who".split()
)
"""First words of tools that mostly read. They decide in which order unannotated tools are called, and nothing else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedCall:
    """A call that the user allowed by naming it: `--call [SERVER/]TOOL=JSON`."""

    server: str | None
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeCall:
    tool: str
    """The exposed name."""
    arguments: dict[str, Any]
    """`${lease.dir}` in their strings is the directory of the lease that makes the call."""
    read_only: bool = False
    """Whether the tool is annotated so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What may be called. `reads` are repeated freely, `writes` are what may leave something behind."""

    reads: tuple[ProbeCall, ...]
    writes: tuple[ProbeCall, ...]
    withheld: tuple[str, ...]
    refused: tuple[str, ...]
    """Calls that are not made, since the tool's own schema refuses the arguments: one message each."""
    only_reads: bool
    """Whether every tool of the server is annotated read-only."""
    word: str
    """What is written where a tool takes free text."""


def new_word() -> str:
    """A word that no server has heard, so that whoever says it got it from a probe."""
    return f"probe{uuid4().hex[:6]}"


def plan_calls(
    server: str, tools: Collection[ToolDefinition], named: Iterable[NamedCall], *, word: str, allow_writes: bool
) -> Plan:
    """Sort a server's tools: annotated read-only ones may be called, others where they are named or all is allowed.

    Args:
        word: What is written where a tool takes free text; `{word}` in a named call's strings stands for it.
    """
    given: dict[str, list[dict[str, Any]]] = {}
    for call in named:
        if call.server in (None, server):
            arguments: Any = json.loads(json.dumps(call.arguments).replace("{word}", word))
            given.setdefault(call.tool, []).append(arguments)
    reads: list[ProbeCall] = []
    writes: list[ProbeCall] = []
    withheld: list[str] = []
    refused: list[str] = []
    # Named ones first: the user knows arguments that make sense.
    for tool in sorted(tools, key=lambda tool: not _arguments_of(tool, given)):
        arguments = _arguments_of(tool, given)
        if not (arguments or tool.read_only or allow_writes):
            withheld.append(tool.exposed_name)
            continue
        # Who names a call wants to know what it does: an annotation alone does not answer that.
        believed = tool.read_only and not arguments
        kind = reads if believed or _sounds_like_reading(tool.name) else writes
        for each in arguments or [plain_arguments(tool.input_schema, word)]:
            if faults := argument_faults(tool, each):
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


def argument_faults(tool: ToolDefinition, arguments: dict[str, Any]) -> list[str]:
    """Why the gateway would not send these arguments; empty where it would."""
    return prepare(tool, arguments).faults


def suggested(server: str, tools: Iterable[ToolDefinition]) -> tuple[str, ...]:
    """For each tool the option, ready to be typed, that lets the probes call it."""
    calls = [
        (tool.name, json.dumps(plain_arguments(tool.input_schema, "{word}"), ensure_ascii=False)) for tool in tools
    ]
    return tuple(f"--call {shlex.quote(f'{server}/{name}={arguments}')}" for name, arguments in calls)


def _arguments_of(tool: ToolDefinition, given: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return given.get(tool.name) or given.get(tool.exposed_name) or []


def _sounds_like_reading(name: str) -> bool:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    return bool(words) and words[0].lower() in _READING
