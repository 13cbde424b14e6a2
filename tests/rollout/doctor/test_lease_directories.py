"""Where the probes' paths point in the directory of a lease."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway import GatewayConfig
from rollout.doctor.examination import Options
from rollout.doctor.examine import examine
from rollout.doctor.report import Verdict

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
    (report,) = await examine(config, Options(hang_timeout_s=0.2))
    assert report.verdict is Verdict.OWN, report
    assert not any((tmp_path / "template" / "files").iterdir())
