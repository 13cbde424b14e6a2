"""Guess what a tool does from its name, description and annotations; only orders and bounds the probes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from mcp_rollout.gateway.types import TRAJECTORIES_META, ToolDefinition

_READING = frozenset(
    "cat check count current debug describe diff exists export fetch find get has head history info inspect is list "
    "load log lookup ls look now open peek print query read recall retrieve search select show stat stats status "
    "summary tail tree view what which who".split()
)
_REMOVING = frozenset(
    "abort cancel clear clean close delete destroy disconnect drop empty end erase exit forget kill logout prune purge "
    "quit remove reset restart restore revert rollback rm shutdown stop terminate trash truncate undo uninstall "
    "unregister unset wipe".split()
)
_CREATING = frozenset("create init initialize make new open plan register request start begin connect define".split())
_ADDING = frozenset(
    "add append book commit copy enqueue import insert log note post push put record remember save schedule send set "
    "stage store submit tag upload upsert write".split()
)
_CHANGING = frozenset(
    "apply approve archive assign checkout complete done edit finish install mark merge modify move patch rename "
    "replace switch toggle transfer update".split()
)
_COMPUTING = frozenset(
    "base64 calc calculate checksum compress compute convert decode decrypt derive digest encode encrypt escape "
    "evaluate format generate hash parse random roll simplify solve sum translate validate verify".split()
)
"""First words of tools that make an answer of their arguments, whatever words follow (`hash_update`)."""
_PROCESS_WORDS = frozenset(
    "shell terminal ssh docker subprocess processes install uninstall pip npm sudo kill spawn reboot".split()
)
_PROCESSES = re.compile(
    r"\b(run|execute|start|launch|spawn|kill)s? (a |an |any |arbitrary )?((shell|bash|system|terminal) )?"
    r"(commands?|process(es)?|programs?)\b",
    re.IGNORECASE,
)
_SIMULATED = re.compile(r"\b(simulated|sandbox(ed)?|virtual|in-memory|isolated)\b", re.IGNORECASE)
_NETWORK = re.compile(
    r"\b(internet|https?|web ?(site|page|search)|url|online|download|e-?mail|sms|slack|tweet|webhook|weather|"
    r"stock price|remote|browser|dns|ping)\b",
    re.IGNORECASE,
)
_RANDOM = re.compile(
    r"\b(random(ly)?|dice|coin|roll|flip|shuffle|pick|uuid|ulid|nanoid|lorem|mock|fake|password|token|nonce|sample)s?\b",
    re.IGNORECASE,
)


class Sort(StrEnum):
    """What a tool seems to do to the server's state."""

    READ = "read"
    NEUTRAL = "neutral"
    WRITE = "write"
    REMOVE = "remove"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hints:
    """What a server sent about a tool besides its definition; None for an annotation that it did not send."""

    open_world: bool | None = None
    trajectories: int = 0
    """How many trajectories the server declares to keep apart in one process (`TRAJECTORIES_META`)."""

    @classmethod
    def by_tool(cls, raw: Iterable[Any]) -> dict[str, Hints]:
        """The hints of each tool of a listing that is not parsed beyond JSON, by the server's names."""
        objects = [cast("Mapping[str, Any]", each) for each in raw if isinstance(each, Mapping)]
        return {str(each.get("name")): cls.of(each) for each in objects}

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Hints:
        """The hints of one tool as its server sent it; what is not a boolean counts as not sent."""
        sent, meta = _object(raw.get("annotations")), _object(raw.get("_meta"))
        most = meta.get(TRAJECTORIES_META)
        flag = sent.get("openWorldHint")
        return cls(
            open_world=flag if isinstance(flag, bool) else None, trajectories=most if isinstance(most, int) else 0
        )


def _object(given: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}


def words_of(name: str) -> list[str]:
    """The words of an identifier, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def sort_of(tool: ToolDefinition) -> Sort:
    """Classify a tool by the words of its name, the first that says anything."""
    words = words_of(tool.name)
    kinds = {_READING: Sort.READ, _REMOVING: Sort.REMOVE, _CREATING | _ADDING | _CHANGING: Sort.WRITE}
    if tool.read_only:
        return Sort.READ
    if words[:1] and words[0] in _COMPUTING:
        return Sort.NEUTRAL
    for word in words:
        for known, sort in kinds.items():
            if word in known:
                return Sort.NEUTRAL if sort is Sort.WRITE and _computes(tool) else sort
    return Sort.NEUTRAL


def rank_of(tool: ToolDefinition) -> int:
    """The order of calls that change state: what makes something before what adds to it, before what changes it."""
    for rank, known in enumerate((_CREATING, _ADDING, frozenset[str](), _CHANGING)):
        if known.intersection(words_of(tool.name)):
            return rank
    return 2


def reaches_outside(tool: ToolDefinition, hints: Hints, *, takes_url: bool) -> str:
    """What a tool reaches besides the server's own state, as the reason not to call it; empty for nothing.

    Args:
        takes_url: Whether one of its arguments is an address, which a probe points at this machine.
    """
    words = words_of(tool.name)
    said = f"{' '.join(words)} {_first_sentence(tool.description)}"
    starts = bool(_PROCESS_WORDS.intersection(words) or _PROCESSES.search(said))
    if starts and not _SIMULATED.search(tool.description) and not tool.read_only:
        return "it may start or end processes"
    if hints.open_world is True and not takes_url and _NETWORK.search(said):
        return "it reaches the network"
    if hints.open_world is None and not takes_url and _NETWORK.search(" ".join(words)):
        return "it may reach the network"
    return ""


def is_random(tool: ToolDefinition) -> bool:
    """Whether different answers are what the tool is for."""
    return bool(_RANDOM.search(f"{' '.join(words_of(tool.name))} {_first_sentence(tool.description)}"))


def _computes(tool: ToolDefinition) -> bool:
    """Whether a word such as `add` means arithmetic here: every argument is a number, and none an id."""
    properties: dict[str, dict[str, Any]] = tool.input_schema.get("properties", {})
    numbers = all(each.get("type") in ("number", "integer") for each in properties.values())
    return bool(properties) and numbers and "id" not in words_of(" ".join(properties))


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s|\n\n", text.strip(), maxsplit=1)[0][:300]
