"""A wheel has all that the README shows: the commands, the included environments, the training configuration."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("configs", "constraints", "gateway", "mcp_rollout", "mcp_servers", "mcp_wire", "rollout")
FILES = ("LICENSE", "README.md", "pyproject.toml")
MOST_MEGABYTES = 120
"""Of the core's installation, without what an empty environment has."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of a wheel, without a repository."""
    copied = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copytree(ROOT / name, copied / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, copied / name)
    return copied


def built(source: Path, home: Path) -> Path:
    """The wheel of these sources, by what this environment has."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(home)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True, timeout=100)
    (wheel,) = home.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel's content, without the checkout around it."""
    site = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True, timeout=100)
    return site


def mcp_rollout(installed: Path, directory: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "mcp_rollout", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_included_environment_is_played_outside_a_checkout(installed: Path, tmp_path: Path) -> None:
    report = mcp_rollout(installed, tmp_path, "run", "calculator", "--engine", "expert", "-n", "2", "--out", "traces")
    assert "1.000" in report
    listed = json.loads(mcp_rollout(installed, tmp_path, "tools", "calculator", "--json"))
    assert {tool["server"] for tool in listed} == {"calculator"}


def test_the_training_configuration_can_be_copied(installed: Path, tmp_path: Path) -> None:
    mcp_rollout(installed, tmp_path, "configs")
    copied = {path.relative_to(tmp_path / "configs") for path in (tmp_path / "configs").rglob("*.yaml")}
    assert copied == {path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.yaml")}


def test_it_has_the_licence_and_the_locks(installed: Path, wheel: Path) -> None:
    (licence,) = installed.glob("mcp_rollout-*.dist-info/licenses/LICENSE")
    assert licence.read_text() == (ROOT / "LICENSE").read_text()
    locks = {path.name for path in (installed / "mcp_rollout" / "rollout" / "constraints").iterdir()}
    assert locks == {path.name for path in (ROOT / "constraints").glob("*_gpu.txt")}
    assert wheel.name == "mcp_rollout-0.1.0-py3-none-any.whl"  # no repository, no tag


@pytest.mark.full
def test_the_version_is_the_tags_where_there_is_one(source: Path, tmp_path: Path) -> None:
    tagged, shallow = tmp_path / "tagged", tmp_path / "shallow"
    shutil.copytree(source, tagged, symlinks=True, ignore=shutil.ignore_patterns("build", "*.egg-info"))

    def git(*arguments: str, at: Path = tagged) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
        subprocess.run(["git", *who, *arguments], cwd=at, check=True, capture_output=True)

    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message", "one")
    git("tag", "v0.7.0")
    assert built(tagged, tmp_path / "1").name.startswith("mcp_rollout-0.7.0-")
    (tagged / "README.md").write_text("two")
    git("commit", "--quiet", "--all", "--message", "two")
    assert built(tagged, tmp_path / "2").name.startswith("mcp_rollout-0.7.1.dev1-")
    git("clone", "--quiet", "--depth", "1", "--no-tags", f"file://{tagged}", str(shallow))
    assert re.match(r"mcp_rollout-0\.\d+(\.\d+)?\.dev\d+-", built(shallow, tmp_path / "3").name)


def interpreter(version: str) -> str | None:
    """An interpreter of this version that starts; None if there is none."""
    named = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    for python in filter(None, named):
        done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return str(python)
    return None


def megabytes(directory: Path) -> float:
    return sum(path.lstat().st_size for path in directory.rglob("*")) / 1e6


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_core_works_in_an_environment_of_its_own(version: str, wheel: Path, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version}")
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    binaries, empty = tmp_path / "venv" / "bin", megabytes(tmp_path / "venv")
    subprocess.run([binaries / "python", "-m", "pip", "install", "--quiet", wheel], check=True)
    assert megabytes(tmp_path / "venv") - empty < MOST_MEGABYTES
    subprocess.run([binaries / "python", "-m", "pip", "check"], check=True)

    def ran(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    program = str(binaries / "mcp-rollout")
    assert ran(program, "--version").strip() == "0.1.0"
    assert "1.000" in ran(program, "run", "calculator", "--engine", "expert", "-n", "2", "--out", "traces")
    assert "keeps the contract" in ran(program, "check-env", "gsm8k_tools")
    loaded = ran(str(binaries / "python"), "-W", "error", "-c", "import sys, mcp_rollout; print(*sys.modules)").split()
    assert {"pyarrow", "numpy", "torch"}.isdisjoint(loaded)


def test_one_package_is_installed_and_it_is_typed(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} == {"bin", "mcp_rollout"}
    assert (installed / "mcp_rollout" / "py.typed").is_file()
