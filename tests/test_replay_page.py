"""docs/replay.md is what happens: its test runs from a cassette that its first command has recorded."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from commands import mcp_rollout

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "replay.md").read_text()


def run(directory: Path, *command: str | Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_on_the_page_passes_without_servers(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    command = re.search(r"^mcp-rollout (run calculator .* --record .*)$", PAGE, re.MULTILINE)
    assert command is not None
    assert mcp_rollout(*command[1].split(), cwd=tmp_path).status == 0
    (tmp_path / "test_calculator.py").write_text(example)
    run(tmp_path, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_calculator.py")
