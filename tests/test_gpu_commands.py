"""The commands that the docs show for GPUs run up to the missing GPU, and the locks that they name fit this package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN = {
    page: block
    for page in ("README.md", "docs/train.md")
    for block in BLOCK.findall((ROOT / page).read_text())
    if "_gpu.txt" in block
}
LOCKS = sorted((ROOT / "constraints").glob("*_gpu.txt"))
PINNED = re.compile(r"^([\w.-]+)(?:\[.*\])?==(\S+)", re.MULTILINE)


def test_a_page_shows_the_commands() -> None:
    assert "docs/train.md" in SHOWN and [lock.stem for lock in LOCKS] == ["sglang_gpu", "vllm_gpu"]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_has_what_the_extra_for_verl_asks_for(lock: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {canonicalize_name(name): version for name, version in PINNED.findall(lock.read_text())}
    extras = project["optional-dependencies"]
    asked = [Requirement(each) for each in [*project["dependencies"], *extras["verl"], *extras["vllm"]]]
    engine = lock.stem.removesuffix("_gpu")
    wrong = [
        f"{each}: {pinned.get(canonicalize_name(each.name))}"
        for each in asked
        if each.name not in ("mcp-rollout", "vllm")
        and not each.specifier.contains(pinned.get(canonicalize_name(each.name), "0"))
    ]
    assert wrong == [] and engine in pinned
    if engine == "vllm":
        assert f"vllm=={pinned['vllm']}" in extras["vllm"]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_line_of_a_lock_has_hashes_and_no_address(lock: Path) -> None:
    text = lock.read_text()
    assert re.findall(r"==[^\\\n]*\n(?!    --hash)", text) == []
    assert "://" not in text and len(PINNED.findall(text)) > 100


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", sorted(SHOWN))
def test_the_commands_run_up_to_the_missing_gpu(page: str, tmp_path: Path) -> None:
    """The engine is a package of its name, since only its installation is missing here."""
    from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

    make_tiny_model(tmp_path / "MODEL")
    for engine in ("sglang", "vllm"):
        (tmp_path / "site" / engine).mkdir(parents=True)
    for name in ("configs", "constraints"):
        (tmp_path / name).symlink_to(ROOT / name)
    shown = SHOWN[page]
    commands = [
        line for line in shown.replace("\\\n", "").splitlines() if "pip install" not in line and "venv" not in line
    ]
    assert "main_ppo" in commands[-1] and len(commands) >= 3
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path / "site"),
        "RAY_TMPDIR": str(tmp_path),
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        ["bash", "-e"],
        input="\n".join(commands),
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "no GPU is available" in done.stderr.splitlines()[-1]
