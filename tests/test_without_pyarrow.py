"""The core works without pyarrow, and what needs it says so in one message with the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_rollout.rollout.extras import install_command
from mcp_rollout.rollout.trace.store import TraceStore, read_traces

WITHOUT = """
import sys
sys.modules['pyarrow'] = None
sys.argv[0] = 'mcp-rollout'
from mcp_rollout.__main__ import main
main()
"""


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", WITHOUT, *arguments]
    environ = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("played")
    done = run(home, "run", "calculator", "--engine", "expert", "-n", "2", "--out", "traces")
    assert done.returncode == 0, done.stderr
    return home


def test_trajectories_are_played_listed_and_exported(played: Path) -> None:
    assert len(list(read_traces(played / "traces"))) == 2
    listed = run(played, "trace", "ls", "traces")
    assert (listed.returncode, listed.stderr) == (0, "") and "calculator" in listed.stdout
    exported = run(played, "trace", "export", "traces", "--sft", "-o", "sft.jsonl")
    assert exported.returncode == 0 and "2 conversations" in exported.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("data", "calculator", "-n", "1", "-o", "rows.parquet"),
        ("trace", "export", "traces", "--parquet", "-o", "columns.parquet"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_command_that_needs_it_says_so(arguments: tuple[str, ...], played: Path) -> None:
    done = run(played, *arguments)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "Parquet needs pyarrow" in done.stderr and install_command("parquet") in done.stderr


def test_an_archive_among_the_traces_is_said_and_not_skipped(played: Path, tmp_path: Path) -> None:
    store = TraceStore(tmp_path / "traces", archive_bytes=1)
    store.append(next(iter(read_traces(played / "traces"))))
    store.wait_for_archives()
    store.close()
    done = run(tmp_path, "trace", "ls", "traces")
    assert done.returncode == 2 and ".jsonl.zst" in done.stderr and install_command("parquet") in done.stderr


def test_a_new_environment_is_written_without_rows(tmp_path: Path) -> None:
    done = run(tmp_path, "new-server", "shop")
    assert done.returncode == 0 and install_command("parquet") in done.stdout
    assert not list((tmp_path / "shop").glob("*.parquet")) and (tmp_path / "shop" / "shop.yaml").is_file()


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'mcp-rollout[verl]'"),
        ({"url": "file:///a%20b/it", "dir_info": {"editable": True}}, "pip install -e '/a b/it[verl]'"),
        ({"url": "file:///a/it.whl", "archive_info": {}}, "pip install '/a/it.whl[verl]'"),
        ({"url": "https://example.org/it", "vcs_info": {"vcs": "git"}}, "pip install 'mcp-rollout[verl]'"),
    ],
    ids=["from an index", "a checkout", "a wheel", "from elsewhere"],
)
def test_an_extra_is_installed_from_where_the_rest_came(
    origin: dict[str, object] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "mcp_rollout-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mcp-rollout\nVersion: 1\n")
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert install_command("verl") == command
