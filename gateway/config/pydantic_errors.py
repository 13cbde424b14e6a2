"""Turn pydantic's validation errors into `ConfigError`s with file, dotted key, problem and remedy."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError

from mcp_rollout.gateway.errors import ConfigError, InvalidValue, InvalidValues, one_error

_SECRET = frozenset({"env", "headers", "args", "url", "command", "cwd", "fixed", "api_key"})
"""Keys below which a value is never quoted."""
_LISTS = frozenset({"tuple_type", "list_type", "set_type", "frozen_set_type"})
_MAPPINGS = frozenset({"dict_type", "model_type", "model_attributes_type", "mapping_type"})
_WORDS = {
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
}


M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], data: Mapping[str, Any], *, file: str | Path | None, key: str = "") -> M:
    """`model.model_validate(data)`, with every failure as a `ConfigError`, several as `ConfigErrors`."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise one_error(config_errors(error, model=model, file=file, key=key)) from None


def config_errors(
    error: ValidationError, *, model: type[BaseModel], file: str | Path | None = None, key: str = ""
) -> list[ConfigError]:
    """One `ConfigError` for each fault of a pydantic error; values that may be secret are not quoted.

    Args:
        model: The model that failed; its fields provide suggestions for an unknown key.
        key: The key of the model's data in the file.
    """
    faults = [each for fault in error.errors(include_url=False) for each in _single(fault)]
    return [_config_error(fault, model, file, key) for fault in faults]


def _single(fault: Any) -> list[Any]:
    """The faults of a validator that found several; any other fault as it is."""
    found = fault.get("ctx", {}).get("error")
    if not isinstance(found, InvalidValues):
        return [fault]
    return [{**fault, "msg": str(each), "ctx": {"error": each}} for each in found.faults]


def _config_error(fault: Any, model: type[BaseModel], file: str | Path | None, key: str) -> ConfigError:
    path = [str(part) for part in fault["loc"]]
    of_a_key = path[-1:] == ["[key]"]
    path = path[:-1] if of_a_key else path
    dotted = ".".join(part for part in [key, *path] if part) or None
    annotation = _annotation_at(model, path)
    problem, remedy = str(fault["msg"]).removeprefix("Value error, "), "correct the value"
    cause = fault.get("ctx", {}).get("error")
    match fault["type"]:
        case "extra_forbidden":
            known = list(_fields(_annotation_at(model, path[:-1])) or {})
            return ConfigError(f"unknown key {path[-1]!r}", file=file, key=dotted, remedy=near(path[-1], known, "keys"))
        case "missing":
            return ConfigError(f"missing key {path[-1]!r}", file=file, key=dotted, remedy="add it")
        case "enum" if of_a_key and (known := _members(_annotation_at(model, path[:-1]))):
            what = path[-2].removesuffix("s") if len(path) > 1 else "key"
            problem = f"unknown {what} {path[-1]!r}"
            return ConfigError(problem, file=file, key=dotted, remedy=near(path[-1], known, f"{what}s"))
        case kind if kind in _LISTS:
            of_strings = " of strings" if str in _arguments(annotation) else ""
            known = _fields(annotation)
            each = f"{{{', '.join(f'{name}: ...' for name in known)}}}" if known else '"...", "..."'
            problem, remedy = f"must be a list{of_strings}", f"write [{each}]"
        case kind if kind in _MAPPINGS:
            known = _fields(annotation)
            problem = "must be a mapping"
            remedy = f"write {{{', '.join(f'{name}: ...' for name in known)}}}" if known else "write {NAME: VALUE}"
        case _:
            plain = problem.replace("Input should be", "must be").replace("String should", "must")
            problem = _WORDS.get(fault["type"], plain)
            remedy = cause.remedy if isinstance(cause, InvalidValue) else remedy
    shown = fault["input"]
    if isinstance(shown, str | int | float | bool) and not _SECRET & set(path) and len(str(shown)) <= 60:
        problem += f", got {shown!r}"
    return ConfigError(problem, file=file, key=dotted, remedy=remedy)


def near(name: str, known: Iterable[str], what: str) -> str:
    """The remedy for an unknown name: the nearest known name, else all of them."""
    names = sorted(known)
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {found[0]!r}?" if found else f"known {what}: {', '.join(names)}"


def _annotation_at(model: type[BaseModel], path: Collection[str]) -> Any:
    """The type of the value at `path`; None if it is unknown."""
    here: Any = model
    for part in path:
        if part.isdigit() and get_origin(here) in (list, tuple):
            here = get_args(here)[0]
            continue
        fields = _fields(here)
        if fields is None:
            # Inside a mapping by name: the name consumes one step.
            here = next((inner for inner in _arguments(here) if _fields(inner) is not None), None)
            continue
        here = fields[part].annotation if part in fields else None
    return here


def _fields(annotation: Any) -> Any:
    """The fields of the model that an annotation is or includes, by their keys in a file; None if there is none."""
    if get_origin(annotation) is dict:
        return None
    found = next(
        (
            each
            for each in (annotation, *get_args(annotation))
            if isinstance(each, type) and issubclass(each, BaseModel)
        ),
        None,
    )
    return None if found is None else {field.alias or name: field for name, field in found.model_fields.items()}


def _arguments(annotation: Any) -> list[Any]:
    """All types that an annotation consists of."""
    found: list[Any] = []
    for argument in get_args(annotation):
        found += [argument, *_arguments(argument)]
    return found


def _members(annotation: Any) -> list[str]:
    for each in _arguments(annotation):
        if isinstance(each, type) and issubclass(each, StrEnum):
            return [str(member) for member in cast("Iterable[StrEnum]", each)]
    return []
