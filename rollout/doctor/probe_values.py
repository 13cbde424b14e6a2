"""Choose plausible arguments for a tool from its schema, names and descriptions, and its server's answers."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from mcp_rollout.gateway.types import ToolDefinition
from mcp_rollout.rollout.doctor.probe_fixtures import STATEMENTS, language_of, statement
from mcp_rollout.rollout.doctor.tool_words import Sort, sort_of, words_of
from mcp_rollout.rollout.engines.random_arguments import FORMATS, suggested_arguments

_EXAMPLE = re.compile(r"(?:e\.g\.?,?|example:?|such as|like|for instance)\s*:?\s*[\"'`]([^\"'`\n]{1,80})[\"'`]", re.I)
_ID_IN_TEXT = re.compile(r"\b((?:[A-Za-z]+[ _-]?)?id)\b[\"']?\s*[:=]\s*[\"'`\[(]?([\w:.-]{1,64})", re.I)
_DURATIONS = frozenset("seconds second duration delay wait timeout interval ms milliseconds sleep ttl".split())
_DIRECTORIES = frozenset("directory dir folder root cwd workdir repo repository".split())
_FILES = frozenset("path paths file files filename filepath workbook document".split())
_SUFFIXES = {
    **dict.fromkeys(("excel", "workbook", "sheet", "worksheet", "xlsx"), ".xlsx"),
    **dict.fromkeys(("csv",), ".csv"),
    **dict.fromkeys(("json",), ".json"),
    **dict.fromkeys(("database", "sqlite", "db"), ".db"),
}
_TEXT = frozenset("text content contents message note name title description body".split())
_JWT = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJwcm9iZSJ9."
_FIXED = {
    "timezone": "UTC", "tz": "UTC", "zone": "UTC", "encoding": "utf-8", "charset": "utf-8", "cron": "0 0 * * *",
    "color": "#336699", "colour": "#336699", "ip": "127.0.0.1", "host": "127.0.0.1", "hostname": "127.0.0.1",
    "email": "someone@example.org", "uuid": FORMATS["uuid"], "branch": None, "date": "2024-05-17",
    "datetime": "2024-05-17T12:30:00Z", "timestamp": "2024-05-17T12:30:00Z", "version": "1.2.3", "language": "python",
    "hex": "0a", "algorithm": "sha256",
    "digest": "sha256", "cidr": "10.0.0.0/24", "semver": "1.2.3", "currency": "EUR", "notation": "2d6",
}  # fmt: skip


@dataclass(slots=True)
class Found:
    """What answers named: values by normalized key, so that `requestId` finds what `request_id` was."""

    values: dict[str, str | int] = field(default_factory=dict[str, "str | int"])

    def learn(self, text: str, structured: object) -> None:
        """Keep the scalars of an answer by their keys; the latest wins."""
        try:
            parsed: object = json.loads(text)
        except ValueError:
            parsed = None
            for key, value in _ID_IN_TEXT.findall(text[:20_000]):
                self.values[_key(key)] = value
        for tree in (structured, parsed):
            self._walk(tree, depth=0)

    def _walk(self, tree: object, depth: int) -> None:
        if isinstance(tree, Mapping) and depth < 6:
            for key, value in cast("Mapping[str, object]", tree).items():
                if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
                    self.values[_key(key)] = value
                self._walk(value, depth + 1)
        elif isinstance(tree, list) and depth < 6:
            for value in cast("list[object]", tree)[:20]:
                self._walk(value, depth + 1)

    def identifier_for(self, name: str) -> str | int | None:
        """The value of an argument that names something: by the same key, else any id where it asks for an `id`."""
        key = _key(name)
        if key in self.values:
            return self.values[key]
        if key == "id":
            return next((self.values[each] for each in reversed(self.values) if each.endswith("id")), None)
        return next(
            (self.values[each] for each in ("id", "hash", "key") if key.endswith(each) and each in self.values), None
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What arguments may refer to."""

    word: str
    directory: str
    """A directory that the server may write to."""
    page: str
    """The address of a page on this machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One way to fill in a tool's arguments."""

    step: int = 0
    """For text in a language: the first, second and third statement of a small program."""
    optional: bool = False
    """Whether optional arguments are filled in, too."""
    choice: tuple[str, Any] | None = None
    """A value for an argument that chooses what the tool does."""


def variants_of(tool: ToolDefinition, *, few: bool = False) -> list[Variant]:
    """The ways to call a tool, the plainest first: a program for one that takes a language, else each of its modes.

    Args:
        few: Whether optional arguments are left out.
    """
    properties, required = _properties(tool), set(_arguments_schema(tool).get("required", ()))
    if any(language_of(tool, name, each) for name, each in properties.items()):
        return [Variant(step=step) for step in range(STATEMENTS)]
    for name, each in properties.items():
        choices: list[Any] = list(each.get("enum", ()))
        if name in required and 1 < len(choices) <= 12 and words_of(name)[-1:] != ["format"]:
            kept = [choice for choice in choices if _sort_of_word(choice) is not Sort.REMOVE]
            return [
                Variant(choice=(name, choice), optional=more)
                for choice in kept[:8]
                for more in ((False,) if few else (False, True))
            ]
    optional = [Variant(optional=True)] if set(properties) - required and not few else []
    return [Variant(), *optional]


def arguments_for(tool: ToolDefinition, variant: Variant, found: Found, around: Surroundings) -> dict[str, Any]:
    """Fill in the arguments of one call."""

    def suggest(name: str, schema: Mapping[str, Any]) -> Any:
        if variant.choice is not None and variant.choice[0] == name:
            return variant.choice[1]
        return _suggested(tool, name, schema, variant, found, around)

    def wanted(name: str, schema: Mapping[str, Any]) -> bool:
        # An optional switch may undo what the other arguments do.
        return variant.optional and _sort_of_word(name) is not Sort.REMOVE and name != "dry_run"

    return suggested_arguments(tool.input_schema, around.word, suggest, wanted)


def takes_url(tool: ToolDefinition) -> bool:
    return any({"url", "uri", "urls"}.intersection(words_of(name)) for name in _properties(tool))


def _suggested(
    tool: ToolDefinition, name: str, schema: Mapping[str, Any], variant: Variant, found: Found, around: Surroundings
) -> Any:
    """A value for one argument; None leaves it to the schema."""
    schema = _first_branch(schema)
    given: Any = schema.get("type", "string")
    kinds = cast("list[str]", given) if isinstance(given, list) else [given]
    words, description = set(words_of(name)), str(schema.get("description") or _in_docstring(tool, name))
    if {"integer", "number"}.intersection(kinds):
        known = found.identifier_for(name) if _names_one(name) else None
        if isinstance(known, int) or (isinstance(known, str) and known.isdigit()):
            return int(known)
        return None if "default" in schema and not words & _DURATIONS else _small(schema)
    if kinds == ["boolean"] and variant.optional:
        return True
    if "enum" in schema and variant.optional and "default" in schema and schema["default"] is None:
        return schema["enum"][0]
    if "string" not in kinds or "enum" in schema or "const" in schema:
        return None
    if _names_one(name) and (known := found.identifier_for(name)) is not None:
        return str(known)
    if language := language_of(tool, name, schema):
        return statement(language, tool, around.word, variant.step)
    if "default" in schema and schema["default"] not in ("", None):
        return None
    said = words | set(words_of(description))
    for word in words_of(name):
        if word in _FIXED:
            return _FIXED[word]
    if {"url", "uri"} & words:
        return around.page
    if (_DIRECTORIES & words) or ("path" in words and _DIRECTORIES & set(words_of(description + " " + tool.name))):
        return around.directory
    if _FILES & words and not {"content", "contents", "text"} & words:
        named = set(words_of(tool.name + " " + tool.description)) | said
        suffix = next((end for word, end in _SUFFIXES.items() if word in named), ".txt")
        is_name = "name" in words and "path" not in said
        return f"{around.word}{suffix}" if is_name else f"{around.directory}/{around.word}{suffix}"
    value = _by_name(tool, words, description, around)
    # A default of null is as good as none.
    return around.word if value is None and variant.optional and "default" in schema else value


def _by_name(tool: ToolDefinition, words: set[str], description: str, around: Surroundings) -> str | None:
    if match := re.search(r"H{1,2}:mm(:ss)?", description, re.I):
        return "00:00:00" if match[1] else "00:00"
    both, said = words | set(words_of(tool.name)), set(words_of(description))
    if "cron" in both | said:
        return "0 0 * * *"
    if "jwt" in both | said:
        return _JWT
    if "expression" in words or {"formula", "equation"} & words:
        postfix = re.search(r"\b(RPN|postfix|reverse polish)\b", f"{tool.description} {description}", re.I)
        return "2 3 +" if postfix else "2 + 3"
    if example := _EXAMPLE.search(description):
        # An example that is a place names none that is ours.
        if not re.search(r"[/\\~]|\w+://", example[1]):
            return example[1]
    if "time" in words:
        return "12:30" if "24-hour" in description or "HH" in description else "2024-05-17 12:30:00"
    if "unit" in said:
        return "m"
    if "hex" in said or ("encoded" in said and "decode" in both):
        return "0A0B"
    if "timestamp" in said:
        return "2024-05-17T12:30:00Z"
    if {"number", "digits", "integer"} & said and not _TEXT & words:
        return "1"
    if "json" in both or ({"parse", "validate"} & both and "json" in words_of(tool.description)):
        return json.dumps({around.word: 1})
    if "yaml" in both:
        return f"{around.word}: 1"
    if "csv" in both:
        return f"name,value\n{around.word},1\n"
    if "base64" in both and {"decode", "base64", "content", "encoded"} & both and "encode" not in both:
        return base64.b64encode(around.word.encode()).decode()
    return None


def _in_docstring(tool: ToolDefinition, name: str) -> str:
    """What the tool's description says about an argument, where it is a docstring that lists them."""
    match = re.search(
        rf"^\s*[-*]?\s*`?{re.escape(name)}`?(?: \([^)]*\))?\s*[:-]\s+(.+)$", tool.description, re.MULTILINE
    )
    return match[1] if match else ""


def _first_branch(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema of alternatives as its first one that is not null."""
    branches: list[Mapping[str, Any]] = schema.get("anyOf") or schema.get("oneOf") or []
    kept = next((branch for branch in branches if branch.get("type") not in (None, "null")), None)
    return schema if "type" in schema or kept is None else {**schema, **kept}


def _names_one(name: str) -> bool:
    words = words_of(name)
    return words[-1:] in (["id"], ["handle"], ["key"], ["uuid"], ["ref"], ["hash"]) or name.lower().endswith("id")


def _small(schema: Mapping[str, Any]) -> int | float:
    """One, or the nearest to it that the bounds allow."""
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1 if "exclusiveMinimum" in schema else 1)
    high = schema.get("maximum", low if low > 1 else 1)
    return min(max(1, low), max(high, low))


def _sort_of_word(value: object) -> Sort:
    return sort_of(ToolDefinition(server="", name=str(value), exposed_name="", description="", input_schema={}))


def _arguments_schema(tool: ToolDefinition) -> dict[str, Any]:
    """The schema of the arguments; that of the one object in which some servers wrap them."""
    schema, definitions = tool.input_schema, tool.input_schema.get("$defs", {})
    properties: dict[str, Any] = schema.get("properties", {})
    wrapped: Any = next(iter(properties.values())) if len(properties) == 1 else None
    if isinstance(wrapped, dict) and "$ref" in wrapped:
        schema = definitions.get(str(cast("dict[str, Any]", wrapped)["$ref"]).removeprefix("#/$defs/"), schema)
    return schema


def _properties(tool: ToolDefinition) -> dict[str, dict[str, Any]]:
    found: dict[str, Any] = _arguments_schema(tool).get("properties", {})
    return {name: each for name, each in found.items() if isinstance(each, dict)}


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
