"""A wheel has all that the README shows: the commands, the included environments, the training configuration."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("configs", "gateway", "mcp_rollout", "mcp_servers", "mcp_wire", "rollout", "pyproject.toml", "README.md")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel's content, without the checkout around it."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True, timeout=100)
    return site


def mcp_rollout(installed: Path, directory: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "rollout.cli", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_included_environment_is_played_outside_a_checkout(installed: Path, tmp_path: Path) -> None:
    report = mcp_rollout(installed, tmp_path, "run", "calculator", "--engine", "expert", "-n", "2", "--out", "traces")
    assert "1.000" in report
    assert "2 trajectories" in mcp_rollout(installed, tmp_path, "trace", "export", "traces", "--html", "page")
    assert (tmp_path / "page" / "assets" / "uPlot.LICENSE").is_file()
    listed = json.loads(mcp_rollout(installed, tmp_path, "tools", "calculator", "--json"))
    assert {tool["server"] for tool in listed} == {"calculator"}


def test_the_training_configuration_can_be_copied(installed: Path, tmp_path: Path) -> None:
    mcp_rollout(installed, tmp_path, "configs")
    copied = {path.relative_to(tmp_path / "configs") for path in (tmp_path / "configs").rglob("*.yaml")}
    assert copied == {path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.yaml")}


def test_the_package_is_typed(installed: Path) -> None:
    for package in ("gateway", "mcp_rollout", "mcp_servers", "mcp_wire", "rollout"):
        assert (installed / package / "py.typed").is_file()
