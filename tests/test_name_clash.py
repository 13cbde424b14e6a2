"""A package of the user's that has the name of one of ours is reported in one message, wherever the program starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
START = "from mcp_rollout_start import main; main()"


def run(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)])}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT.parent,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(params=["gateway", "rollout", "mcp_servers"])
def clashing(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / request.param).mkdir()
    (tmp_path / request.param / "__init__.py").write_text("")
    return tmp_path / request.param


def test_the_program_names_both_packages_and_ends_with_status_2(clashing: Path) -> None:
    done = run(clashing.parent, "-c", START, "--help")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert str(clashing) in done.stderr and str(ROOT / clashing.name) in done.stderr and "Rename" in done.stderr


def test_the_python_api_raises_an_import_error_that_says_so(clashing: Path) -> None:
    done = run(clashing.parent, "-c", "import mcp_rollout")
    assert f"NameClash: the package {clashing.name!r} of mcp-rollout" in done.stderr and str(clashing) in done.stderr


def test_a_module_of_the_name_hides_the_package_too(tmp_path: Path) -> None:
    (tmp_path / "gateway.py").write_text("")
    done = run(tmp_path, "-c", START, "--help")
    assert done.returncode == 2 and str(tmp_path / "gateway.py") in done.stderr


def test_a_process_of_a_trainer_that_imports_an_agent_loop_says_so(tmp_path: Path) -> None:
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "__init__.py").write_text("")
    done = run(tmp_path, "-c", "import rollout.errors")
    assert "NameClash" in done.stderr


def test_a_directory_without_init_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "notes.txt").write_text("")
    done = run(tmp_path, "-c", START, "--version")
    assert done.returncode == 0, done.stderr
