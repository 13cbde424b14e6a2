"""new-server writes an environment that works as generated, and never over anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.new_server import new_server
from mcp_rollout.rollout.environment.parquet import read_rows
from mcp_rollout.rollout.environment.task import Task

FILES = ["README.md", "server.py", "tea_shop.yaml", "test.parquet", "test_tea_shop.py", "train.parquet"]


def test_what_is_generated_passes_its_own_test_from_anywhere(tmp_path: Path) -> None:
    place = tmp_path / "of my own"
    assert new_server("tea_shop", place) == 0
    made = place / "tea_shop"
    assert sorted(file.name for file in made.iterdir()) == FILES
    assert not [file for file in made.iterdir() if b"NAME" in file.read_bytes()]
    for split in ("train", "test"):
        rows = list(read_rows(made / f"{split}.parquet"))
        assert {row["extra_info"]["split"] for row in rows} == {split} and len(rows) == 100
        task = Task.from_row(rows[7])
        assert (task.environment, task.task) == ("tea_shop", f"tea_shop-{split}-0007")
        assert [message["role"] for message in task.prompt] == ["system", "user"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(made / "test_tea_shop.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_tests_of_two_generated_environments_run_together(tmp_path: Path) -> None:
    tests = [tmp_path / name / f"test_{name}.py" for name in ("alpha", "beta")]
    for test in tests:
        new_server(test.parent.name, tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0 and "6 passed" in done.stdout, done.stdout + done.stderr


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "server.py").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        new_server("shop", tmp_path)
    assert (tmp_path / "shop" / "server.py").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["shop"]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("Tea Shop", "for example tea_shop"),
        ("../escape", "for example escape"),
        ("2048", "for example shop"),
        ("class", "for example shop"),
        ("", "for example shop"),
        ("x" * 41, "for example xxxx"),
        ("tea\n", "for example tea"),
    ],
)
def test_a_name_that_will_not_do_is_one_error_with_one_that_will(name: str, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        new_server(name, tmp_path)
    assert remedy in str(error.value) and not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        new_server("shop", tmp_path / "file")
