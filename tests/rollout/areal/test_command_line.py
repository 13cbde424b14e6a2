"""Faults of AReaL's configuration are one message each, with file, key and remedy."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.areal import cpu

ROOT = Path(__file__).parents[3]
GIVEN = ["--config", "configs/areal/cpu.yaml", "actor.path=m", "train_dataset.path=r"]


@pytest.fixture(scope="module", autouse=True)
def imported_areal() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cpu.prepare()
        import mcp_rollout.rollout.areal.train  # noqa: F401


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("train_dataset.path=???", "train_dataset.path"),
        ("mcp.prompt_token=3", "mcp.prompt_token"),
        ("actor.optimzer.lr=3", "actor.optimzer"),
        ("+actor.optimizer.learning_rate=3", "actor.optimizer.learning_rate"),
        ("gconfig.n_samples=two", "gconfig.n_samples"),
        ("actor.optimizer={lr", None),
        ("total_train_epochs=0", None),
    ],
)
def test_a_fault_is_named_with_its_key(tmp_path: Path, override: str, key: str | None) -> None:
    from mcp_rollout.rollout.areal.command_line import read_config

    with pytest.raises(ConfigError) as refused:
        read_config([*GIVEN, f"cluster.fileroot={tmp_path}", override])
    assert (str(refused.value.file), refused.value.key) == ("configs/areal/cpu.yaml", key)


def test_a_file_that_is_missing_is_named() -> None:
    from mcp_rollout.rollout.areal.command_line import read_config

    with pytest.raises(ConfigError, match=r"configs/areal/nothing.yaml: --config: no such file"):
        read_config(["--config", "configs/areal/nothing.yaml"])


def test_a_file_that_is_no_yaml_is_named_with_the_line(tmp_path: Path) -> None:
    from mcp_rollout.rollout.areal.command_line import read_config

    (tmp_path / "broken.yaml").write_text("gconfig: [1\nactor: }")
    with pytest.raises(ConfigError, match=r"broken.yaml: line 2, column 6: not valid YAML: .*\(fix the syntax\)"):
        read_config(["--config", str(tmp_path / "broken.yaml")])


def test_keys_of_the_file_and_of_the_command_line_are_read(tmp_path: Path) -> None:
    from mcp_rollout.rollout.areal.command_line import read_config

    config = read_config([*GIVEN, f"cluster.fileroot={tmp_path}", "+actor.optimizer.eps=1e-4", "mcp.prompt_tokens=7"])
    assert (config.actor.optimizer.eps, config.mcp["prompt_tokens"]) == (1e-4, 7)
    assert config.ref.temperature == config.gconfig.temperature == 1.0
