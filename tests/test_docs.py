"""The docs name files that exist, and build as a site without a broken link."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
PATH = re.compile(r"`((?:configs|constraints|docs|examples|gateway|mcp_servers|rollout|tests)/[\w./-]*\w/?)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    named = PATH.findall(page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
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
