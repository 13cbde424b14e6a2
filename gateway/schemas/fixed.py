"""An input schema without the arguments that the gateway fills in: what is left for the policy to know.

Their values are known, so whatever the schema says about them can be worked out beforehand: a branch that demands one
demands nothing any more, a branch that forbids its value is gone. What cannot be worked out is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from gateway.config.selection import fill
from gateway.schemas.check import check_value
from gateway.schemas.subschemas import Document, Unchecked, needed_definitions

_MOST_STEPS = 2000
_FURTHEST = 50
"""References from one to the next."""
_BRANCHES = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")
_DEPENDENT = ("dependentRequired", "dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_OF_ONE_VALUE = ("$schema", "$id", "$defs", "definitions", "properties")
"""Keywords of the root that matter for a single argument: where references lead."""
_SAMPLES = (("trajectory", 0), ("another", 1))


class CannotHide(Exception):
    """Why a schema still names an argument, or allows no call with it; the argument's name comes first."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(problem)
        self.name = name


def fits_alone(schema: Mapping[str, Any], name: str, value: Any, own: Any = None) -> bool:
    """Whether the argument `name` may have this value, as far as that does not depend on the others.

    Args:
        own: The argument's schema in place of the one under `properties`.
    """
    properties = cast("Mapping[str, Any]", schema.get("properties") or {})
    alone = {keyword: schema[keyword] for keyword in _OF_ONE_VALUE if keyword in schema}
    alone["properties"] = {**properties, name: properties.get(name, True) if own is None else own}
    return not check_value(alone, {name: value}, subject=f"fixed argument {name}")


def without(schema: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """An input schema without some of its arguments, and without the definitions that only those needed.

    Args:
        fixed: The values that these arguments have; variables in them may have any value.

    Raises:
        CannotHide: one of them is still named, or nothing can be called with it.
    """
    hidden = _Hiding(schema, fixed).hide(schema)
    if not isinstance(hidden, dict):
        raise CannotHide(next(iter(fixed)), "no call with this value is allowed")
    left = cast("dict[str, Any]", hidden)
    left.setdefault("properties", {})  # chat templates look there
    for keyword in ("$defs", "definitions"):
        if isinstance(definitions := schema.get(keyword), Mapping):
            kept = needed_definitions(left, keyword, cast("Mapping[str, Any]", definitions))
            left.pop(keyword)
            if kept:
                left[keyword] = kept
    return left


class _Hiding:
    def __init__(self, root: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
        self._root, self._fixed = root, fixed
        self._steps, self._following = 0, 0
        try:
            self._document: Document | None = Document(root)
        except Unchecked:
            self._document = None

    def hide(self, schema: Any) -> Any:
        """A schema for the arguments without the fixed ones: a schema of its own, true or false."""
        if not isinstance(schema, Mapping) or not self._concerned(schema, set()):
            return dict(cast("Mapping[str, Any]", schema)) if isinstance(schema, Mapping) else schema
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise CannotHide(next(iter(self._fixed)), "what the schema refers to expands too far")
        left: dict[str, Any] = {}
        applied: list[Any] = []  # what applied with a fixed argument applies always
        required: list[str] = []
        for keyword, value in cast("Mapping[str, Any]", schema).items():
            if keyword == "properties" and isinstance(value, Mapping):
                properties = cast("Mapping[str, Any]", value)
                if not all(self._fits(name, own) for name, own in properties.items() if name in self._fixed):
                    return False
                if others := {name: own for name, own in properties.items() if name not in self._fixed}:
                    left[keyword] = others
            elif keyword == "required" and isinstance(value, list):
                if others := self._others(cast("list[Any]", value)):
                    left[keyword] = others
            elif keyword in _DEPENDENT and isinstance(value, Mapping):
                self._hide_dependent(keyword, cast("Mapping[str, Any]", value), left, required, applied)
            elif keyword in _BRANCHES and isinstance(value, list):
                branches = self._hide_branches(keyword, cast("list[Any]", value))
                if branches is False:
                    return False
                if branches:
                    left[keyword] = branches
            elif keyword in _SINGLE:
                left[keyword] = self.hide(value)
                if keyword == "not" and left[keyword] in (True, {}):
                    return False
            elif keyword in _REFERENCES and self._concerned({keyword: value}, set()):
                applied.append(self._hide_target(value))
            elif keyword in ("minProperties", "maxProperties") and isinstance(value, int):
                left[keyword] = max(0, value - len(self._fixed))
            else:
                left[keyword] = self._hide_values(keyword, value)
        if required:
            left["required"] = list(dict.fromkeys([*left.get("required", []), *required]))
        if any(each is False for each in applied):
            return False
        if applied := [each for each in applied if each not in (True, {})]:
            left["allOf"] = [*left.get("allOf", []), *applied]
        return left

    def _fits(self, name: str, own: Any) -> bool:
        if own is True:
            return True
        value = self._fixed[name]
        said = {fits_alone(self._root, name, fill(value, trajectory=t, seed=seed), own) for t, seed in _SAMPLES}
        if len(said) > 1:
            raise CannotHide(name, "what else may be given depends on a value that differs between trajectories")
        return said.pop()

    def _others(self, names: Sequence[Any]) -> list[Any]:
        return [name for name in names if name not in self._fixed]

    def _hide_dependent(
        self,
        keyword: str,
        dependent: Mapping[str, Any],
        left: dict[str, Any],
        required: list[str],
        applied: list[Any],
    ) -> None:
        kept: dict[str, Any] = {}
        for name, needs in dependent.items():
            less: Any = self._others(cast("list[Any]", needs)) if isinstance(needs, list) else self.hide(needs)
            if name not in self._fixed:
                kept[name] = less
            elif isinstance(needs, list):
                required += less
            else:
                applied.append(less)
        if kept:
            left[keyword] = kept

    def _hide_branches(self, keyword: str, branches: list[Any]) -> list[Any] | bool:
        """What is left of them; empty where they say nothing any more, false where none can be met."""
        hidden = [self.hide(branch) for branch in branches]
        if keyword == "allOf":
            return False if False in hidden else [branch for branch in hidden if branch not in (True, {})]
        hidden = [branch for branch in hidden if branch is not False]
        if keyword == "anyOf" and any(branch in (True, {}) for branch in hidden):
            return []
        return hidden or False

    def _hide_target(self, reference: Any) -> Any:
        assert self._document is not None
        if self._following == _FURTHEST:
            raise CannotHide(next(iter(self._fixed)), f"the schema refers to itself: {str(reference)[:80]!r}")
        self._following += 1
        _, target = self._document.target(reference)
        hidden = self.hide(target)
        self._following -= 1
        return hidden

    def _hide_values(self, keyword: str, value: Any) -> Any:
        if keyword == "default":
            return self._less(value)
        if keyword == "examples" and isinstance(value, list):
            return [self._less(example) for example in cast("list[Any]", value)]
        if (name := self._named_by(keyword, value)) is not None:
            raise CannotHide(name, f"its schema names it under {keyword!r}")
        return value

    def _less(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        items = cast("Mapping[str, Any]", value).items()
        return {name: inner for name, inner in items if name not in self._fixed}

    def _named_by(self, keyword: str, value: Any) -> str | None:
        """The fixed argument that a keyword names among whole values, or as a name."""
        if keyword == "propertyNames":
            allowed: Any = cast("Mapping[str, Any]", value).get("enum", []) if isinstance(value, Mapping) else []
        elif keyword in ("enum", "const", "default", "examples"):
            several = keyword in ("enum", "examples") and isinstance(value, list)
            stated: list[Any] = cast("list[Any]", value) if several else [value]
            allowed = [name for each in stated if isinstance(each, Mapping) for name in cast("Mapping[str, Any]", each)]
        else:
            return None
        return next((name for name in self._fixed if name in allowed), None)

    def _concerned(self, schema: Any, seen: set[str]) -> bool:
        """Whether a schema for the arguments says anything about the fixed ones, or counts them."""
        if not isinstance(schema, Mapping):
            return False
        for keyword, value in cast("Mapping[str, Any]", schema).items():
            if keyword in ("properties", "required") and isinstance(value, Mapping | list):
                found = any(name in self._fixed for name in cast("list[Any]", value))
            elif keyword in _DEPENDENT and isinstance(value, Mapping):
                dependent = cast("Mapping[str, Any]", value)
                found = any(name in self._fixed for name in dependent) or any(
                    bool(set(cast("list[str]", needs)) & self._fixed.keys())
                    if isinstance(needs, list)
                    else self._concerned(needs, seen)
                    for needs in dependent.values()
                )
            elif keyword in _BRANCHES and isinstance(value, list):
                found = any(self._concerned(branch, seen) for branch in cast("list[Any]", value))
            elif keyword in _SINGLE:
                found = self._concerned(value, seen)
            elif keyword in _REFERENCES:
                found = self._leads_to_concerned(value, seen)
            else:
                found = keyword in ("minProperties", "maxProperties") or self._named_by(keyword, value) is not None
            if found:
                return True
        return False

    def _leads_to_concerned(self, reference: Any, seen: set[str]) -> bool:
        if self._document is None or str(reference) in seen:
            return False
        seen.add(str(reference))
        try:
            _, target = self._document.target(reference)
        except Unchecked:
            return False
        return self._concerned(target, seen)
