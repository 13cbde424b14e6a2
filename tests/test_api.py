"""The public API is what docs/api.md says: its examples run, its names exist, and importing it stays light."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mcp_rollout

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "api.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def python(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100, check=False)


def test_the_examples_of_the_page_run_one_after_another(tmp_path: Path) -> None:
    assert len(EXAMPLES) == 5
    for example in EXAMPLES:
        done = python(example, tmp_path)
        assert done.returncode == 0, example + done.stderr


def test_the_page_lists_every_public_name() -> None:
    listed = set(re.findall(r"`(\w+)`", PAGE))
    assert sorted(set(mcp_rollout.__all__) - listed) == []
    assert [name for name in mcp_rollout.__all__ if not hasattr(mcp_rollout, name)] == []


def test_the_signatures_of_the_page_are_those_of_the_source() -> None:
    """After a change: `python docs/reference.py`."""
    specification = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert specification is not None and specification.loader is not None
    reference = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(reference)
    (shown,) = reference.SIGNATURES.findall(PAGE)
    assert shown == reference.signatures()
    assert re.findall(r"^### (\w+)$", shown, re.MULTILINE) == sorted(mcp_rollout.__all__, key=str.lower)


def test_importing_the_api_needs_no_training_stack(tmp_path: Path) -> None:
    code = "import sys, mcp_rollout; print(*({'torch', 'verl', 'ray', 'transformers'} & set(sys.modules)))"
    assert python(code, tmp_path).stdout.strip() == ""


def test_the_stub_has_the_names_of_the_package_and_there_is_no_other() -> None:
    assert sorted(re.findall(r"as (\w+)", (ROOT / "mcp_rollout" / "__init__.pyi").read_text())) == mcp_rollout.__all__
    with pytest.raises(AttributeError):
        mcp_rollout.Nothing  # noqa: B018


def test_reading_traces_imports_neither_mcp_nor_verl() -> None:
    heavy = {"mcp", "verl", "torch", "transformers"}
    done = python(f"import sys, mcp_rollout.rollout.cli.trace; print({heavy} & sys.modules.keys())", ROOT)
    assert done.stdout == "set()\n"
