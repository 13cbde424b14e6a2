"""What docs/upgrading.md says that this package relies on is in the installed packages. Read off their sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

PAGE = Path(__file__).parents[1] / "docs" / "upgrading.md"
ROWS = re.findall(r"^\| `([\w./]+?): ?([\w.]+)(\(.*?\))?` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)


def package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{name} is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


@cache
def source(module: str) -> ast.Module | None:
    top, *rest = module.split(".")
    path = package(top).joinpath(*rest)
    found = next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)
    return ast.parse(found.read_text()) if found is not None else None


def bound(scope: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What a module or a class binds, also by its methods on `self`."""
    for node in ast.walk(scope):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name, node
            case ast.Name(id=name, ctx=ast.Store()):
                yield name, node
            case ast.alias(name=name, asname=asname):
                yield asname or name, node
            case _:
                pass


def parameters(function: ast.AST) -> list[str]:
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    given = function.args
    every = [*given.posonlyargs, *given.args, *filter(None, [given.vararg]), *given.kwonlyargs]
    return [each.arg for each in [*every, *filter(None, [given.kwarg])] if each.arg not in ("self", "cls")]


def fault(where: str, name: str, form: str) -> str:
    """What is wrong with a row; empty where it is as the page says."""
    if where.endswith(".yaml"):
        top, _, rest = where.partition("/")
        found = yaml.safe_load(path.read_text()) if (path := package(top) / rest).is_file() else {}
        for key in name.split("."):
            if not isinstance(found, dict) or key not in found:
                return f"has no key {name} in {where}"
            found = found[key]
        return ""
    scope: ast.AST | None = source(where)
    for part in name.split("."):
        scope = dict(bound(scope)).get(part) if scope is not None else None
    if scope is None:
        return f"has no {where}.{name}"
    if form and (taken := parameters(scope)) != (said := [each for each in form[1:-1].split(", ") if each]):
        return f"has {where}.{name} with the parameters {taken}, not {said}"
    return ""


@pytest.mark.parametrize(("where", "name", "form", "use"), ROWS, ids=lambda each: each)
def test_an_installed_package_has_what_is_relied_upon(where: str, name: str, form: str, use: str) -> None:
    top = re.split(r"[./]", where)[0]
    wrong = fault(where, name, form)
    installed = version(packages_distributions()[top][0]) if wrong else ""
    assert not wrong, f"{top} {installed} {wrong}. It was for: {use}. See docs/upgrading.md."


def methods(path: Path) -> Iterator[str]:
    """Underscore methods of a file's classes."""
    for kind in ast.walk(ast.parse(path.read_text())):
        if isinstance(kind, ast.ClassDef):
            own = (each.name for each in kind.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            yield from (name for name in own if re.match(r"_[a-z]", name))


def test_every_underscore_method_of_verl_that_is_overridden_stands_in_the_page() -> None:
    # By name, whatever the class: a mixin names no base, and the worker's comes out of Ray's metadata.
    theirs = {name for path in package("verl").rglob("*.py") for name in methods(path)}
    said = {name.rpartition(".")[2] for where, name, _, _ in ROWS if where.startswith("verl.")}
    root = PAGE.parents[1] / "rollout"
    paths = [*(root / "verl").rglob("*.py"), *(root / "verl_cpu").rglob("*.py")]
    overridden = {name for path in paths for name in methods(path)} & theirs
    assert "_run_agent_loop" in overridden and overridden - said == set()


def test_every_row_of_the_page_is_read() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert len(lines) == len(ROWS)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (("uvicorn.server", "Server.gone", ""), "has no uvicorn.server.Server.gone"),
        (("uvicorn.server", "Server.capture_signals", "(number)"), "not ['number']"),
        (("uvicorn.gone", "any", ""), "has no uvicorn.gone.any"),
    ],
)
def test_what_has_changed_is_said(row: tuple[str, str, str], said: str) -> None:
    assert said in fault(*row)
