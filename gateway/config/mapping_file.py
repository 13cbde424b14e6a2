"""Read a file whose top level is a mapping: JSON with comments, trailing commas and a byte order mark, or YAML.

A duplicate key is an error; parsers of both formats would silently keep the last one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, cast

import yaml

from mcp_rollout.gateway.errors import ConfigError, raise_all

JSON_SUFFIXES = frozenset({".json", ".jsonc"})

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_HALF = "half of a surrogate pair, which is not text"
_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])")


def read_mapping(path: str | Path) -> dict[str, Any]:
    """The file's keys and values. Raises `ConfigError`."""
    text = _text(path)
    try:
        data = read_json(text, path) if Path(path).suffix in JSON_SUFFIXES else yaml.load(text, _Loader)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        problem, remedy = f"not valid JSON: {error.msg}", "fix the syntax"
        if not text.strip():
            problem, remedy = "the file is empty", 'expected {"mcpServers": {NAME: {"command": ...}}}'
        elif error.msg.startswith("Invalid \\"):
            remedy = "write each backslash twice"
        raise ConfigError(problem, file=path, key=where, remedy=remedy) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else None
        problem = getattr(error, "problem", None) or "syntax error"
        raise ConfigError(f"not valid YAML: {problem}", file=path, key=where, remedy="fix the syntax") from None
    except RecursionError:
        raise ConfigError("is nested too deeply", file=path, remedy="fix the syntax") from None
    if not isinstance(data, dict):
        raise ConfigError("the top level is not a mapping", file=path, remedy="expected keys and values")
    return {str(name): value for name, value in cast("dict[Any, Any]", data).items()}


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError("no such file", file=path, remedy="check the path") from None
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8 text", file=path, remedy="save it as UTF-8") from None
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise ConfigError(problem, file=path, remedy="check that it is a readable text file") from None


class _Object(dict[str, Any]):
    """A JSON object that records its duplicate keys."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.twice: list[str] = []
        if len(self) < len(pairs):
            names = [name for name, _ in pairs]
            self.twice = [name for name in self if names.count(name) > 1]


def read_json(text: str, path: str | Path) -> Any:
    """The value of a JSON text with comments.

    Raises:
        ConfigError: a key is there twice, or a string has half of a surrogate pair.
        ValueError, RecursionError: it is not JSON.
    """
    # Replaced by blanks, so that lines and columns in messages are those of the file.
    text = _LAST_COMMA.sub(_blanked, _COMMENT.sub(_blanked, text))
    data = json.loads(text, object_pairs_hook=_Object)
    remedy = "only the last one would count: rename or remove one"
    raise_all([ConfigError("duplicate key", file=path, key=key, remedy=remedy) for key in _twice(data, "")])
    if "\\ud" in text.lower():  # how a surrogate is spelled
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ConfigError(f"has {_HALF}", file=path, remedy="write whole characters") from None
    return data


def _blanked(match: re.Match[str]) -> str:
    found = match.group()
    return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)


def _twice(value: Any, at: str) -> Iterator[str]:
    if isinstance(value, _Object):
        yield from (f"{at}{name}" for name in value.twice)
        for name, inner in value.items():
            yield from _twice(inner, f"{at}{name}.")
    elif isinstance(value, list):
        for index, inner in enumerate(cast("list[Any]", value)):
            yield from _twice(inner, f"{at}{index}.")


class _Loader(yaml.SafeLoader):
    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:  # YAML spells no character as a pair
                raise yaml.constructor.ConstructorError(None, None, _HALF, node.start_mark) from None
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            name = (key.tag, key.value)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value!r}", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep=deep)
