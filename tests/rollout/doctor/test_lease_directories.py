"""Where the probes' paths point in the directory of a lease."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mcp_rollout import GatewayConfig
from mcp_rollout.rollout.doctor.examination import Options
from mcp_rollout.rollout.doctor.examine import examine
from mcp_rollout.rollout.doctor.report import Verdict

pytestmark = pytest.mark.anyio
FILES = """
import pathlib, sys
from mcp.server.mcpserver import MCPServer
server, root = MCPServer("files", log_level="ERROR"), pathlib.Path(sys.argv[1])

def inside(path: str) -> pathlib.Path:
    if root not in pathlib.Path(path).parents:
        raise ValueError(f"access denied: {path}")
    return pathlib.Path(path)

@server.tool()
def read_file(path: str) -> str:
    return inside(path).read_text()

@server.tool()
def write_file(path: str, content: str) -> str:
    return f"wrote {inside(path).write_text(content)} characters"

server.run("stdio")
"""


async def test_paths_point_below_what_the_entry_names_in_the_directory_of_a_lease(tmp_path: Path) -> None:
    (tmp_path / "files.py").write_text(FILES)
    for name in ("other", "files"):
        (tmp_path / "template" / name).mkdir(parents=True)
    entry = {"command": sys.executable, "args": [str(tmp_path / "files.py"), "${lease.dir}/files"], "scope": "process"}
    config = GatewayConfig.model_validate(
        {"servers": {"world": entry}, "lease_dir": {"template": str(tmp_path / "template")}}
    )
    (report,) = await examine(config, Options())
    assert report.verdict is Verdict.OWN, report
    assert not any((tmp_path / "template" / "files").iterdir())


TEMPORARY = """
import pathlib, tempfile
from mcp.server.mcpserver import MCPServer
server, file = MCPServer("facts", log_level="ERROR"), pathlib.Path(tempfile.gettempdir(), "facts.txt")

@server.tool()
def remember(fact: str) -> str:
    return f"noted {file.write_text(fact)} characters"

@server.tool()
def recall() -> str:
    return file.read_text() if file.exists() else "nothing yet"

server.run("stdio")
"""


@pytest.mark.full
async def test_state_in_the_temporary_directory_is_kept_apart_by_its_variable(tmp_path: Path) -> None:
    (tmp_path / "facts.py").write_text(TEMPORARY)
    config = GatewayConfig.model_validate(
        {"servers": {"facts": {"command": sys.executable, "args": [str(tmp_path / "facts.py")]}}}
    )
    (report,) = await examine(config, Options())
    assert report.verdict is Verdict.LEASE_DIR and report.advice is not None
    assert report.advice.changes is not None and report.advice.changes["env"] == {"TMPDIR": "${lease.dir}"}
    assert "with env.TMPDIR: ${lease.dir}, recall went from" in report.advice.reason


DRAWN = """
import random
from mcp.server.mcpserver import MCPServer
server, drawn = MCPServer("drawn", log_level="ERROR"), {}

@server.tool()
def forecast(city: str) -> str:
    return "warm " * drawn.setdefault(city, random.randint(1, 3))

@server.tool()
def readings() -> str:
    return "high " * drawn.setdefault("", random.randint(1, 1000))

server.run("stdio")
"""


@pytest.mark.full
async def test_what_a_process_draws_once_for_all_leases_is_noted_and_is_not_taken_for_files(tmp_path: Path) -> None:
    (tmp_path / "drawn.py").write_text(DRAWN)
    config = GatewayConfig.model_validate(
        {"servers": {"drawn": {"command": sys.executable, "args": [str(tmp_path / "drawn.py")]}}}
    )
    (report,) = await examine(config, Options())
    assert report.verdict is not Verdict.LEASE_DIR, report
    assert any("readings" in note and "all leases of one process alike" in note for note in report.notes), report
