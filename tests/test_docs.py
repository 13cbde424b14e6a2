"""The docs name files that exist, show code that runs, and build as a site without a broken link."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mcp_rollout import Gateway, GatewayConfig
from mcp_rollout.gateway.types import Role

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
PATH = re.compile(
    r"`((?:configs|constraints|docs|examples|gateway|lab|mcp_servers|mcp_wire|rollout|tests)/[\w./-]*\w/?)`"
)

BLOCK = {kind: re.compile(rf"^```{kind}\n(.*?)^```", re.MULTILINE | re.DOTALL) for kind in ("python", "yaml")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    named = PATH.findall(page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_test_that_the_list_of_threats_names_exists() -> None:
    made = {name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "security.md").read_text()))
    assert len(named) > 20
    assert named - made == set()


def test_every_module_that_the_architecture_names_exists() -> None:
    named = set(re.findall(r"`([\w./]*\w\.py)`", (ROOT / "docs" / "architecture.md").read_text()))
    packages = (
        "docs",
        "examples",
        "gateway",
        "lab",
        "mcp_rollout",
        "mcp_servers",
        "mcp_wire",
        "rollout",
        "tests",
    )
    paths = [f"/{path.relative_to(ROOT)}" for package in packages for path in (ROOT / package).rglob("*.py")]
    assert len(named) > 50
    assert {name for name in named if not any(path.endswith(f"/{name}") for path in paths)} == set()


@pytest.mark.anyio
@pytest.mark.parametrize("over", ["command", "factory"])
async def test_the_server_that_write_shows_works(over: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "write.md").read_text()
    code, written = (found[1] for kind in ("python", "yaml") if (found := BLOCK[kind].search(page)))
    (tmp_path / "number.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    shown = yaml.safe_load(written)["servers"]["number"]
    entries = {
        "command": {**shown, "command": sys.executable, "cwd": str(tmp_path)},
        "factory": {"factory": re.findall(r'factory: "(.*?)"', written)[0]},
    }
    config = GatewayConfig.model_validate({"servers": {"number": entries[over]}})
    async with Gateway(config) as gateway, gateway.lease(trajectory="t", task="one", seed=1) as session:
        number = (await session.call("look", {})).text
        messages = [{"role": "assistant", "content": f"It is {number}."}]
        judged = await session.invoke(Role.SCORE, {"messages": messages}, server="number")
    assert judged.structured is not None and judged.structured["score"] == 1.0


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr


def test_every_configuration_key_has_a_meaning_and_every_command_its_options() -> None:
    specification = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert specification is not None and specification.loader is not None
    reference = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(reference)
    keys = [line for line in reference.configuration_page().splitlines() if re.match(r"\| (★ )?`", line)]
    assert len(keys) > 100
    assert [line for line in keys if line.endswith("|  |")] == []
    assert "`--environments-dir <path>`" in reference.commands_page()
