"""A run that cannot work ends before AReaL starts anything, with one message that has file, key and remedy."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import yaml

from mcp_rollout.rollout.areal import cpu
from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", autouse=True)
def imported_areal() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cpu.prepare()
        import mcp_rollout.rollout.areal.train  # noqa: F401


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model, rows and lock of `calculator`."""
    home = tmp_path_factory.mktemp("home")
    make_tiny_model(home / "model", hidden=32, layers=1)
    for command in (
        ["data", "calculator", "--split", "train", "-n", "4", "-o", str(home / "rows.parquet")],
        ["tool-config", "calculator", "-o", str(home / "lock.yaml")],
    ):
        subprocess.run([Path(sys.executable).with_name("mcp-rollout"), *command], check=True)
    return home


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def checked(home: Path, *overrides: str) -> None:
    """What the entry point does before AReaL."""
    import asyncio

    from areal.api.cli_args import load_expr_config

    from mcp_rollout.rollout.areal.config import MCPConfig
    from mcp_rollout.rollout.areal.preflight import preflight

    given = [f"actor.path={home / 'model'}", f"train_dataset.path={home / 'rows.parquet'}"]
    given += [f"cluster.fileroot={home}", f"mcp.tool_config_path={home / 'lock.yaml'}", "train_dataset.batch_size=2"]
    config, _ = load_expr_config(["--config", "configs/areal/cpu.yaml", *given, *overrides], MCPConfig)
    asyncio.run(preflight(config))


def test_the_files_as_they_are_pass(home: Path) -> None:
    checked(home)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("+mcp.environment.max_sesions=4", ["mcp.environment.max_sesions", "max_sessions"]),
        ("mcp.environments_dir=nowhere", ["mcp.environments_dir", "no such directory"]),
        ("mcp.tool_config_path=nowhere.yaml", ["mcp.tool_config_path", "mcp-rollout tool-config"]),
        ("mcp.chat_template=tests/support/templates/smollm2.jinja", ["mcp.chat_template", "leaves out tools"]),
        ("mcp.chat_template=nowhere.jinja", ["mcp.chat_template", "cannot be read"]),
        ("mcp.tool_format=latin", ["mcp.tool_format", "latin"]),
        ("mcp.prompt_tokens=10", ["row 0", "10 are allowed"]),
        ("gconfig.max_tokens=300", ["gconfig.max_tokens", "mcp.response_tokens"]),
        ("actor.temperature=0.5", ["actor.temperature", "${gconfig.temperature}"]),
        ("actor.reward_norm={mean_level: group, std_level: group}", ["actor.reward_norm", "null"]),
        ("+actor.mask_no_eos_with_zero=true", ["actor.mask_no_eos_with_zero", "false"]),
        ("train_dataset.batch_size=5", ["train_dataset.batch_size: is 5", "4 rows", "smaller"]),
        ("total_train_steps=5", ["total_train_steps: is 5", "2 with total_train_epochs=1", "total_train_epochs to 3"]),
        ("rollout.request_timeout=1", ["rollout.request_timeout", "wall_clock_s"]),
        ("train_dataset.path=nowhere.parquet", ["nowhere.parquet"]),
    ],
)
def test_what_cannot_work_is_refused(home: Path, override: str, said: list[str]) -> None:
    from mcp_rollout.gateway.errors import ConfigError

    with pytest.raises(ConfigError) as error:
        checked(home, override)
    assert [word for word in said if word not in str(error.value)] == []


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("ref=null", r"actor.kl_ctl: is 0.1, and there is no reference policy \(.*grpo.yaml"),
        ("ref.temperature=0.5", r"ref.temperature: is 0.5.*\$\{gconfig.temperature\}"),
    ],
)
def test_a_divergence_that_would_be_computed_wrongly_is_refused(home: Path, override: str, said: str) -> None:
    from mcp_rollout.gateway.errors import ConfigError

    with pytest.raises(ConfigError, match=said):
        checked(home, "actor.kl_ctl=0.1", override)
    checked(home, override)


def test_a_lock_that_differs_from_the_servers_is_refused(home: Path, tmp_path: Path) -> None:
    from mcp_rollout.gateway.errors import LockMismatch

    changed = yaml.safe_load((home / "lock.yaml").read_text())
    text = yaml.safe_dump(changed).replace("expression", "formula")
    (tmp_path / "lock.yaml").write_text(text)
    with pytest.raises((LockMismatch, ValueError)):
        checked(home, f"mcp.tool_config_path={tmp_path / 'lock.yaml'}")


def test_the_entry_point_ends_with_status_2(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mcp_rollout.rollout.areal.train import main as train

    given = ["--config", "configs/areal/cpu.yaml", f"actor.path={home / 'model'}", "actor.temperature=0.5"]
    assert train([*given, f"train_dataset.path={home / 'rows.parquet'}", f"cluster.fileroot={home}"]) == 2
    assert "error: configs/areal/cpu.yaml: actor.temperature: is 0.5" in capsys.readouterr().err
