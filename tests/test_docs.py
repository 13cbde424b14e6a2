"""The docs name files that exist, and build as a site without a broken link."""

from __future__ import annotations

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
