"""Private names of mcp and uvicorn stand in two files, which know the releases that have them. Read off the source."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from mcp_types import RequestParams

ROOT = Path(__file__).parents[1]
PACKAGES = ("gateway", "mcp_servers", "mcp_wire", "rollout", "mcp_rollout")
SEAMS = {"gateway/sdk.py", "mcp_servers/kit/sdk.py"}
THEIRS = ("mcp", "mcp_types", "uvicorn")
MEMBER = RequestParams.model_fields["meta"].alias
"""Of messages, `_meta`: mcp has an attribute of this name, too."""
FORGING = ("__pydantic_private__", "__pydantic_fields_set__", "__pydantic_extra__")
"""What pydantic's constructors set: written by hand, it makes an object that no constructor has checked."""


def is_private(name: str) -> bool:
    return re.fullmatch(r"_[A-Za-z]\w*", name) is not None


def is_theirs(module: str) -> bool:
    return module.partition(".")[0] in THEIRS


def defined(tree: ast.AST) -> Iterator[str]:
    """Names that code defines: functions, classes, and what it assigns in modules, in classes and on `self`."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), ctx=ast.Store()):
                yield node.attr
            case _:
                pass
        if isinstance(node, ast.Module | ast.ClassDef):
            for each in node.body:
                targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
                yield from (target.id for target in targets if isinstance(target, ast.Name))


@cache
def their_names() -> frozenset[str]:
    found = set[str]()
    for package in THEIRS:
        spec = find_spec(package)
        assert spec is not None and spec.submodule_search_locations
        for path in Path(spec.submodule_search_locations[0]).rglob("*.py"):
            found.update(filter(is_private, defined(ast.parse(path.read_text()))))
    return frozenset(found)


@cache
def names_of(module: str, name: str) -> frozenset[str]:
    """Private names of a class of theirs and of its bases."""
    kind = getattr(import_module(module), name)
    if not isinstance(kind, type):
        return frozenset()
    bases = [base for base in kind.__mro__ if is_theirs(base.__module__)]
    sources = "".join(inspect.getsource(base) for base in bases)
    return frozenset(
        filter(is_private, {*re.findall(r"self\.(\w+)", sources), *(n for base in bases for n in vars(base))})
    )


class File:
    """A file's uses of private names, with their lines."""

    def __init__(self, path: Path) -> None:
        self.path, self.tree = path, ast.parse(path.read_text())
        self.imported = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        self.own = set(defined(self.tree))

    def uses(self) -> Iterator[tuple[int, str]]:
        for node in ast.walk(self.tree):
            match node:
                case ast.ImportFrom(module=str(module)) if is_theirs(module):
                    for part in (*module.split("."), *(alias.name for alias in node.names)):
                        if is_private(part):
                            yield node.lineno, part
                case ast.Import():
                    for alias in node.names:
                        if is_theirs(alias.name) and any(map(is_private, alias.name.split("."))):
                            yield node.lineno, alias.name
                case ast.Attribute(attr=name) if name in FORGING:
                    yield node.lineno, name
                case ast.Attribute(attr="__new__", value=ast.Name(id=name)) if self.names_of(name):
                    yield node.lineno, f"{name}.__new__"
                case ast.Attribute(attr=name, value=value) if name in their_names():
                    of_self = isinstance(value, ast.Name) and value.id in ("self", "cls")
                    if not of_self and name not in self.own:
                        yield node.lineno, name
                case ast.Constant(value=str(text)) if text in their_names() or text in FORGING:
                    if text not in self.own and text != MEMBER:
                        yield node.lineno, repr(text)
                case ast.ClassDef():
                    yield from self.inherited(node)
                case _:
                    pass

    def inherited(self, node: ast.ClassDef) -> Iterator[tuple[int, str]]:
        """Names of a base of theirs that a class uses or overrides."""
        theirs = {name for base in node.bases for name in self.names_of(ast.unparse(base).partition("[")[0])}
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and inner.attr in theirs:
                yield inner.lineno, inner.attr
            elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name in theirs:
                yield inner.lineno, inner.name

    @cache  # noqa: B019
    def names_of(self, name: str) -> frozenset[str]:
        """Private names that a class of this file or of its imports has from mcp or uvicorn."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef) and node.name == name:
                bases = (ast.unparse(base).partition("[")[0] for base in node.bases)
                return frozenset[str]().union(*(self.names_of(base) for base in bases if base != name))
        module, _, attribute = name.rpartition(".")
        found = (self.imported.get(module, ("", ""))[0], attribute) if module else self.imported.get(name, ("", ""))
        return names_of(*found) if is_theirs(found[0]) else frozenset()


def files() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def test_private_names_of_mcp_and_uvicorn_stand_in_their_two_files() -> None:
    found = [
        f"{place}:{line}: {name}"
        for path in files()
        if (place := str(path.relative_to(ROOT))) not in SEAMS
        for line, name in File(path).uses()
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "from mcp.server._otel import OpenTelemetryMiddleware",
        "from mcp.shared.jsonrpc_dispatcher import _Pending",
        "import uvicorn._types",
        "session._dispatcher.notify()",
        "getattr(session, '_dispatcher')",
        "vars(context)['_request_context'] = 1",
        "from mcp.server.mcpserver import Context\nclass Own(Context): ...\nmade = Own.__new__(Own)",
        "context.__pydantic_private__ = {}",
        "from uvicorn.protocols.http.h11_impl import H11Protocol\n"
        "class Own(H11Protocol):\n def end(self):\n  self._unset_keepalive_if_required()",
        "from mcp.client.auth import OAuthClientProvider\n"
        "class Own(OAuthClientProvider):\n async def _perform_authorization(self): ...",
    ],
)
def test_each_way_to_a_private_name_is_found(source: str, tmp_path: Path) -> None:
    path = tmp_path / "any.py"
    path.write_text(source)
    assert list(File(path).uses())
