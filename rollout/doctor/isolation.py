"""Make the same calls in several leases, and compare: one lease must not see what another did.

A `Player` makes calls in one lease, and a `Run` keeps the answers. Errors are answers, too: many servers send them as
ordinary text, so an answer is *well* only if it does not read like an error.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mcp_rollout.gateway.errors import CallTimeout, DeliveryUnknown, GatewayError
from mcp_rollout.gateway.leases.janitor import LEASE_DIR
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import CallFault, canonical_json
from mcp_rollout.rollout.doctor.plan import ProbeCall
from mcp_rollout.rollout.doctor.probe_values import Found, Surroundings

_SHOWN, _SHOWN_OF_ERRORS = 60, 200
"""Characters of an answer that are quoted; what an error asks for may come late in it."""
_MOST_CHARACTERS = 20_000
_MOST_FOREIGN = 20
_ERROR_FIRST = re.compile(
    r"^.{0,60}?\berrors?\b ?(:|\(|while|calling|executing|code)|"
    r"^\W*(\w*error\b|err\b|failed|failure|invalid|\w*exception\b|traceback|unknown (tool|command|action)|cannot|"
    r"could not|unable|usage:|execution error)",
    re.IGNORECASE,
)
_ERROR_ANYWHERE = re.compile(
    r"\b(does not exist|doesn't exist|no such|already exists?|is required|permission denied|access denied|not allowed|"
    r"unauthorized|econnrefused|connection refused|traceback \(most recent)|not found\b|"
    r"\"errors?\"\s*:\s*(?!null|\[\]|false|\"\"|0\b|\{\})|\"(success|ok)\"\s*:\s*false|"
    r"\"status\"\s*:\s*\"(error|failed)\"|\bE(ACCES|NOENT|ROFS|PERM)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The answer to a probe call: `refused` is an error result, `failed` no answer at all."""

    text: str
    refused: bool = False
    failed: bool = False

    @property
    def well(self) -> bool:
        """Whether the tool did what was asked, as far as its answer says."""
        if self.refused or self.failed:
            return False
        return not (_ERROR_FIRST.search(self.text[:200]) or _ERROR_ANYWHERE.search(self.text[:2000]))

    @property
    def line(self) -> str:
        return " ".join(self.text.split())

    def excerpt(self, start: int = 0) -> str:
        """Quote the line from this character on, with `…` where text is left out, which may end inside of quotes."""
        kept, most = self.line[start:], _SHOWN_OF_ERRORS if self.refused or self.failed else _SHOWN
        return repr("…" * (start > 0) + (kept if len(kept) <= most else kept[: most - 1] + "…"))

    __str__ = excerpt


@dataclass(frozen=True, slots=True)
class Step:
    """One call and its answer."""

    call: ProbeCall
    arguments: str
    """In canonical form."""
    answer: ProbeAnswer
    at: float = 0.0
    """When it was answered, in seconds of a clock that only moves forward."""


@dataclass(slots=True)
class Run:
    """The calls of a script in one lease; fewer than all where the time of the probes was over."""

    steps: list[Step] = field(default_factory=list[Step])


@dataclass(slots=True)
class Waits:
    """Where the probes of one server spent their time."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    """By tool."""
    calls: dict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    given_up: set[str] = field(default_factory=set[str])
    """Tools that did not answer in time once, and are not called again."""

    def mean_s(self, tool: str) -> float:
        """Seconds of a call of this tool."""
        return self.seconds[tool] / max(self.calls[tool], 1)

    def slow_tools(self, *, at_least_s: float) -> list[str]:
        """At most one message, of the tools whose calls took longer than `at_least_s` together, the slowest first."""
        slowest = sorted(self.seconds.items(), key=lambda each: -each[1])
        slow = ", ".join(f"{seconds:.0f} s for {tool}" for tool, seconds in slowest if seconds >= at_least_s)
        remedy = "--call with less to do, or leave them out with tools"
        return [f"slow: the probes waited {slow} ({remedy})"] if slow else []


class Player:
    """Makes calls in one lease, one after the other.

    Args:
        place: The throwaway directory of the server; None if it has none, or the lease has one of its own.
        named: What the entry names below the server's or the lease's directory; paths point to the first that is a
            directory.
    """

    def __init__(
        self, session: Session, word: str, *, place: Path | None, named: Sequence[str] = (), page: str, waits: Waits
    ) -> None:
        self._session, self._waits = session, waits
        self._root = str(session.lease_dir or place or "/tmp")
        directory = _directory_in(self._root, named)
        self._around = Surroundings(word=word, directory=directory, page=page)
        if session.lease_dir is not None:
            # There before the first call, as in `Throwaway.prepare`.
            file = Path(directory, f"{word}.txt")
            if not file.exists():
                file.write_text("one line\n")
        self._found = Found()

    async def play(self, calls: Iterable[ProbeCall], run: Run) -> Run:
        """Make the calls, and add them to `run`."""
        for call in calls:
            arguments = _with_lease_dir(call.arguments(self._found, self._around), self._root)
            answer = await self._answer(call.name, arguments)
            recorded = _without(self._root, canonical_json(arguments))
            run.steps.append(Step(call, recorded, answer, time.perf_counter()))
        return run

    async def _answer(self, tool: str, arguments: dict[str, Any]) -> ProbeAnswer:
        waits = self._waits
        if tool in waits.given_up:
            return ProbeAnswer("given up", failed=True)
        began = time.perf_counter()
        try:
            answer, structured = await probe_call(self._session, tool, arguments, self._root)
            if answer.well:
                self._found.learn(answer.text, structured)
        finally:  # also where the time of the probes is over and this call is cancelled
            waits.seconds[tool] += time.perf_counter() - began
            waits.calls[tool] += 1
        # A tool that hangs once would take the time of all probes that are left.
        if answer.failed:
            waits.given_up.add(tool)
        return answer


def foreign_calls(first: Run, second: Run) -> dict[int, ProbeCall]:
    """Calls of one lease with arguments that another one never used, such as ids that only the first was given.

    Returns:
        The calls by their place in the script, at most `_MOST_FOREIGN`.
    """
    used = {(step.call.name, step.arguments) for step in second.steps}
    found: dict[int, ProbeCall] = {}
    for index, step in enumerate(first.steps):
        if step.answer.well and (step.call.name, step.arguments) not in used and len(found) < _MOST_FOREIGN:
            used.add((step.call.name, step.arguments))
            found[index] = replace(step.call, given=json.loads(step.arguments))
    return found


async def probe_call(session: Session, tool: str, arguments: dict[str, Any], root: str) -> tuple[ProbeAnswer, object]:
    """Make one call. Failures become answers; `root` is shown as `${lease.dir}`, so that leases can be compared."""
    try:
        result = await session.call(tool, arguments)
    except (CallTimeout, DeliveryUnknown) as error:
        return ProbeAnswer(error.code, failed=True), None
    except GatewayError as error:
        return ProbeAnswer(str(error), failed=True), None
    if result.fault in (CallFault.TIMED_OUT, CallFault.SERVER_GONE):
        return ProbeAnswer(str(result.fault), failed=True), None
    structured = canonical_json(dict(result.structured)) if result.structured is not None and not result.text else ""
    text = (result.text + structured)[:_MOST_CHARACTERS]
    return ProbeAnswer(_without(root, text), refused=result.is_error), result.structured


def _directory_in(root: str, named: Sequence[str]) -> str:
    """Where paths in arguments point: a directory that the entry names, else the working directory."""
    if root == "/tmp":  # what lies in there is not the server's
        return root
    return next((str(each) for name in (*named, "work") if (each := Path(root, name)).is_dir()), root)


def _with_lease_dir(arguments: dict[str, Any], root: str) -> dict[str, Any]:
    return json.loads(json.dumps(arguments).replace(LEASE_DIR, json.dumps(root)[1:-1]))


def _without(root: str, text: str) -> str:
    # An answer may have the path as given, with its links resolved, or only its last part.
    for path in (os.path.realpath(root), root, os.path.basename(root)):
        if path not in ("", "/tmp", "tmp"):
            text = text.replace(path, LEASE_DIR)
    return text
