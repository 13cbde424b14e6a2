"""Imports point one way, see docs/architecture.md. Read off the source: an import inside a function counts too."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Packages from the bottom to the top. A module imports its own package and those in the rows below, never a neighbour
# in its row: so no two packages can import each other.
GATEWAY = (
    {"errors", "types", "server_events", "shortened", "private_files"},
    {"config"},
    {"schemas"},
    {"catalogue", "transport"},
    {"connection", "logs"},
    {"remote"},
    {"leases"},
    {"cassette"},
    {"gateway"},
    {"serve"},
    {"__init__"},
)
ROLLOUT = (
    {"errors", "types", "decoding", "process"},
    {"environment", "formats"},
    {"trace", "shards"},
    {"loop", "tokens"},
    {"agents", "engines", "verl_cpu", "viewer"},
    {"training"},
    {"areal", "evaluation", "contract", "doctor", "verl"},
    {"bench"},
    {"cli"},
    {"__init__"},
)
ADAPTERS = tuple(
    ROOT / "rollout" / room
    for room in (
        *("areal", "verl", "verl_cpu", "tokens", "decoding", "shards"),
        "engines/in_process.py",
    )
)
HEAVY = {"verl", "ray", "torch", "transformers", "hydra", "omegaconf", "areal"}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def name(package: str, path: Path) -> str:
    return path.relative_to(ROOT / package).parts[0].removesuffix(".py")


@pytest.mark.parametrize(("package", "layers"), [("gateway", GATEWAY), ("rollout", ROLLOUT)])
def test_no_module_imports_upwards(package: str, layers: tuple[set[str], ...]) -> None:
    level = {module: index for index, layer in enumerate(layers) for module in layer}
    upwards = [
        f"{path.relative_to(ROOT)} imports {imported}"
        for path in modules(package)
        for imported in imports(path)
        if imported.startswith(f"{package}.")
        and (room := imported.split(".")[1]) != (own := name(package, path))
        and level[room] >= level[own]
    ]
    assert upwards == []


def test_every_module_has_its_layer() -> None:
    for package, layers in (("gateway", GATEWAY), ("rollout", ROLLOUT)):
        assert {name(package, path) for path in modules(package)} == set().union(*layers)


def test_the_gateway_knows_no_rollout_and_the_servers_know_neither() -> None:
    above = {"gateway", "mcp_servers", "rollout"}
    for package, forbidden in (
        ("gateway", above - {"gateway"}),
        ("mcp_servers", above - {"mcp_servers"}),
        ("mcp_wire", above),
    ):
        found = [
            (path.name, top) for path in modules(package) for top in imports(path) if top.split(".")[0] in forbidden
        ]
        assert found == []


def test_nothing_imports_the_public_package() -> None:
    found = [
        path.name
        for package in ("gateway", "mcp_servers", "mcp_wire", "rollout")
        for path in modules(package)
        if any(imported.split(".")[0] == "mcp_rollout" for imported in imports(path))
    ]
    assert found == []


def test_heavy_packages_are_imported_by_the_adapters_alone() -> None:
    found = [
        f"{path.relative_to(ROOT)} imports {imported}"
        for package in ("gateway", "mcp_servers", "mcp_wire", "rollout")
        for path in modules(package)
        if not any(path.is_relative_to(adapter) for adapter in ADAPTERS)
        for imported in imports(path)
        if imported.split(".")[0] in HEAVY
    ]
    assert found == []


def test_only_its_adapter_imports_areal() -> None:
    found = {
        name("rollout", path) for path in modules("rollout") if {"areal"} & {i.split(".")[0] for i in imports(path)}
    }
    assert found <= {"areal"}


def test_only_the_wire_touches_mcp() -> None:
    allowed = {"transport", "connection", "serve"}
    found = {
        name("gateway", path)
        for path in modules("gateway")
        for top in imports(path)
        if top.split(".")[0] in {"mcp", "mcp_types"}
    }
    assert found <= allowed


def test_servers_import_nothing_but_mcp_pydantic_and_the_standard_library() -> None:
    # What mcp itself needs and brings along.
    of_mcp = {"pydantic", "pydantic_core", "anyio", "httpx2", "starlette", "uvicorn", "opentelemetry"}
    allowed = {"mcp", "mcp_types", "mcp_servers", "mcp_wire", *of_mcp, *sys.stdlib_module_names}
    found = {
        (name("mcp_servers", path), imported)
        for path in modules("mcp_servers")
        for imported in (top.split(".")[0] for top in imports(path))
        if imported not in allowed
    }
    # The extras `research` and `bfcl`; and a replayed user may come from traces in an archived journal.
    assert found == {("bfcl", "bfcl_eval"), ("research", "bm25s"), ("user_simulator", "pyarrow")}


def runtime_imports(path: Path) -> set[str]:
    """Modules that importing this one imports, each `from package import module` resolved as far as it can be."""
    tree = ast.parse(path.read_text())
    skipped = {id(node) for test in ast.walk(tree) if isinstance(test, ast.If) for node in ast.walk(test)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in skipped:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_the_gateway_is_at_most_ten_imports_deep() -> None:
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in modules("gateway")}
    needs = {module: runtime_imports(path) & paths.keys() for module, path in paths.items()}

    @functools.cache
    def depth(module: str) -> int:
        return 1 + max(map(depth, needs[module]), default=0)

    assert max(map(depth, needs)) <= 10


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Whether it catches every exception; `ast.Name` finds the class in a tuple, too."""
    caught = [] if handler.type is None else [n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)]
    return handler.type is None or bool({"Exception", "BaseException"} & set(caught))


@pytest.mark.parametrize("package", ["gateway", "mcp_rollout", "mcp_servers", "mcp_wire", "rollout"])
def test_what_catches_every_exception_raises_it_again_or_names_the_boundary(package: str) -> None:
    unnamed: list[str] = []
    for path in modules(package):
        lines = path.read_text().splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.ExceptHandler) and is_broad(node):
                head = "\n".join(lines[node.lineno - 1 : node.body[0].lineno])
                last = node.body[-1]
                raises_again = isinstance(last, ast.Raise) and last.exc is None
                if "boundary" not in head and not (raises_again and "#" in head):
                    unnamed.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert unnamed == []
