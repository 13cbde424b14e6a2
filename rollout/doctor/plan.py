"""Plan the probes of a server: which calls, in which order, and which tools are left out."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from uuid import uuid4

from mcp_rollout.gateway.schemas.arguments import prepare
from mcp_rollout.gateway.types import ToolDefinition
from mcp_rollout.rollout.doctor.probe_values import Found, Surroundings, Variant, arguments_for, takes_url, variants_of
from mcp_rollout.rollout.doctor.tool_words import Hints, Sort, is_random, rank_of, reaches_outside, sort_of
from mcp_rollout.rollout.engines.random_arguments import plain_arguments

_REPEATS = 2
"""Of each call that may change something, after each was made once; after an even number of calls a toggle would be
back in its first state."""
_LOOKS_BETWEEN = 40
"""Looks after all calls that may change something together, each of them made twice; at least one after each."""
MAY_WRITE = "it may write"
_MANY = 30
"""Tools of a server above which each is called in fewer ways."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOption:
    """A call that the user allows by naming it: `--call [SERVER/]TOOL=JSON`."""

    server: str | None
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Permissions:
    """What probes may do to one server."""

    write: bool
    """Whether tools may be called that are not annotated read-only."""
    outside: bool
    """Whether tools may be called that reach the network or other processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeCall:
    """One call of the script; its arguments are made when it is called, since they may come from earlier answers."""

    tool: ToolDefinition
    sort: Sort
    variant: Variant = field(default_factory=Variant)
    given: dict[str, Any] | None = None
    """Arguments of the user's; `${lease.dir}` in a string is replaced by the directory of the calling lease."""

    @property
    def name(self) -> str:
        return self.tool.exposed_name

    @property
    def random(self) -> bool:
        return is_random(self.tool)

    def arguments(self, found: Found, around: Surroundings) -> dict[str, Any]:
        """The arguments, in a form that the tool's schema accepts if there is one."""
        if self.given is not None:
            return self.given
        made = arguments_for(self.tool, self.variant, found, around)
        plain = plain_arguments(self.tool.input_schema, around.word)
        return plain if prepare(self.tool, made, as_sent=False).faults else made


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """The calls that every lease makes, always in this order."""

    rounds: tuple[tuple[ProbeCall, ...], ...]
    """The calls in the portions in which two leases take turns: a look, or a call that may change something with looks
    before and after it. The looks before repeat those after the call of the round before: in between, only the other
    lease did anything."""
    opening: int
    """Number of looks that are made twice at the beginning, and once more at the end."""
    closing: tuple[ProbeCall, ...]
    """Calls that remove what was made; only the last lease of a place makes them."""
    withheld: Mapping[str, str]
    """Tools that are not called, each with the reason."""
    refused: tuple[str, ...]
    """Names of tools whose schema refuses the user's arguments, each with the reasons."""
    word: str
    """Free text in arguments."""

    @property
    def calls(self) -> tuple[ProbeCall, ...]:
        return tuple(chain.from_iterable(self.rounds))

    @property
    def tools(self) -> dict[str, ProbeCall]:
        """The first call of each tool."""
        return {call.name: call for call in reversed((*self.calls, *self.closing))}


def new_word() -> str:
    """Make a word that no server knows, so that an answer with it shows what a probe wrote."""
    return f"probe{uuid4().hex[:6]}"


def plan_script(
    server: str,
    tools: Collection[ToolDefinition],
    hints: Mapping[str, Hints],
    options: Iterable[CallOption],
    *,
    word: str,
    permissions: Permissions,
    as_sent: bool = False,
) -> Script:
    """Choose the calls: what looks, twice; what may change something, three times each, with looks in between; and what
    looks again.

    What may change something is first called in reverse order, so that a tool that shows what another one wrote is
    called before that one, whatever its name.

    Args:
        hints: The tools' annotations, by the server's own names.
        options: Calls that the user allows; `{word}` in their strings is replaced by `word`.
        as_sent: Whether arguments are sent that the tool's schema refuses (`calls.arguments`).
    """
    given: dict[str, list[dict[str, Any]]] = {}
    for call in options:
        if call.server in (None, server):
            arguments: Any = json.loads(json.dumps(call.arguments).replace("{word}", word))
            given.setdefault(call.tool, []).append(arguments)
    looks: list[ProbeCall] = []
    before: list[ProbeCall] = []
    acts: list[ProbeCall] = []
    closing: list[ProbeCall] = []
    withheld: dict[str, str] = {}
    refused: list[str] = []
    for tool in sorted(tools, key=rank_of):
        own = given.get(tool.name) or given.get(tool.exposed_name) or []
        if reason := _withheld(tool, hints.get(tool.name, Hints()), permissions, named=bool(own)):
            withheld[tool.exposed_name] = reason
            continue
        sort = sort_of(tool)
        faults = [prepare(tool, each, as_sent=as_sent).faults for each in own]
        refused += [f"{tool.exposed_name}: {'; '.join(found)}" for found in faults if found]
        calls = [
            ProbeCall(tool=tool, sort=sort, given=each) for each, found in zip(own, faults, strict=True) if not found
        ]
        if not own:
            variants = variants_of(tool, few=len(tools) > _MANY)
            # Without leave to write, the first alone: later statements of a program write.
            kept = variants if permissions.write else variants[:1]
            calls = [ProbeCall(tool=tool, sort=sort, variant=variant) for variant in kept]
        match sort:
            case Sort.READ:
                looks += calls
            case Sort.REMOVE:
                closing += calls
            case _:
                # The statements of a program are one sequence.
                program = any(call.variant.step for call in calls)
                before += [] if program else calls
                acts += calls if program else [call for call in calls for _ in range(_REPEATS)]
    return Script(
        rounds=_rounds(looks, [*reversed(before), *acts]),
        opening=len(looks),
        closing=(*closing, *looks) if closing else (),
        withheld=withheld,
        refused=tuple(refused),
        word=word,
    )


def _rounds(looks: list[ProbeCall], acts: list[ProbeCall]) -> tuple[tuple[ProbeCall, ...], ...]:
    most = min(len(looks), max(1, _LOOKS_BETWEEN // max(len(acts), 1)))
    # Where there are too many looks to repeat all of them each time, they take turns.
    around = [looks[at * most % len(looks) :][:most] if looks else [] for at in range(len(acts) + 1)]
    middle = ((*around[at], act, *around[at + 1]) for at, act in enumerate(acts))
    return (*((look,) for look in (*looks, *looks)), *middle, tuple(looks))


def _withheld(tool: ToolDefinition, hints: Hints, permissions: Permissions, *, named: bool) -> str:
    if not permissions.write and not tool.read_only:
        return MAY_WRITE  # whatever calls the user named: they do not say where they write to
    if not permissions.outside and not named:
        return reaches_outside(tool, hints, takes_url=takes_url(tool))
    return ""


def arguments_to_fill(tool: ToolDefinition) -> list[str]:
    """The arguments of a tool whose call failed with made-up values: those with free text, else the required ones."""
    plain = plain_arguments(tool.input_schema, "{word}")
    return [name for name, value in plain.items() if "{word}" in json.dumps(value)] or list(plain)


def suggested(server: str, tools: Iterable[ToolDefinition]) -> tuple[str, ...]:
    """The `--call` option of each tool that lets the probes call it, quoted for a shell."""
    calls = [
        (tool.name, json.dumps(plain_arguments(tool.input_schema, "{word}"), ensure_ascii=False)) for tool in tools
    ]
    return tuple(f"--call {shlex.quote(f'{server}/{name}={arguments}')}" for name, arguments in calls)
