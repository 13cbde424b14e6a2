"""What AReaL's processes get of the configuration, in the forms in which AReaL hands it over; without AReaL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mcp_rollout.rollout.areal.settings import Settings
from mcp_rollout.rollout.environment.parquet import read_rows


def test_settings_are_the_same_in_a_rollout_process(tmp_path: Path) -> None:
    environment = {"agent": {"use": "mcp_rollout.rollout.agents.reflect:Reflect", "with": {"rounds": 1}}}
    section: dict[str, Any] = {"environments_dir": str(tmp_path), "trace_dir": "traces", "environment": environment}
    settings = Settings.of(section)
    assert Settings.model_validate(json.loads(json.dumps(settings.model_dump(mode="json")))) == settings
    assert settings.environment == environment


def test_rows_are_read_from_a_path_that_is_a_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["a", "b"]}), tmp_path / "rows.parquet")
    assert list(read_rows(str(tmp_path / "rows.parquet"))) == [{"prompt": "a"}, {"prompt": "b"}]
