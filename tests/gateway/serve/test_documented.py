"""What docs/serve.md says that can be copied, over a served environment that the program itself starts."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[3] / "docs" / "serve.md"
TOKEN = "a token in a file, long enough"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    argv = [sys.executable, "-m", "mcp_rollout", "serve", "calculator", "--port", "0", "--token-file", str(tokens)]
    program = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    overdue = threading.Timer(90, program.kill)
    overdue.start()
    try:
        yield program.stdout.readline().strip()
        program.send_signal(signal.SIGTERM)
        assert program.wait(timeout=60) == 0
    finally:
        overdue.cancel()
        program.kill()
        program.wait()
        program.stdout.close()


def test_the_lines_for_other_trainers_play_a_trajectory(address: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    scope: dict[str, Any] = {}
    exec(blocks[-1], scope)
    row = {"name": "t-1", "task": "calculator-test-0000", "seed": 100000, "server": "calculator"}
    text, score = scope["play"](address, TOKEN, **row, tool="add", arguments={"a": 2, "b": 3})
    assert "5" in text and "score" in score
