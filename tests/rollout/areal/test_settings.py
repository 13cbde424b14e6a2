"""What AReaL's processes get of the configuration, in the forms in which AReaL hands it over; without AReaL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mcp_rollout.gateway.errors import Faults
from mcp_rollout.rollout.areal.settings import Settings
from mcp_rollout.rollout.environment.config import Environment
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


@pytest.mark.parametrize(
    ("changed", "keys"),
    [
        ({}, []),
        ({"thinking": {"context": "drop_previous"}}, []),  # nothing is dropped without a further user message
        (
            {"agent": {"use": "mcp_rollout.rollout.agents.reflect:Reflect"}, "thinking": {"context": "drop_previous"}},
            ["thinking.context"],
        ),
        ({"strategy": "compact"}, ["strategy.use"]),
        (
            {"agent": {"use": "mcp_rollout.rollout.programs.program:Function", "with": {"use": "told:plain"}}},
            ["agent.use"],
        ),
    ],
)
def test_what_may_be_several_rows_is_refused_where_areal_normalises_them(
    tmp_path: Path, changed: dict[str, Any], keys: list[str]
) -> None:
    environment = Environment.model_validate({"name": "e", "servers": {"s": {"factory": "a:b"}}, **changed})
    for normalises in (True, False):
        given = {"environments_dir": tmp_path, "trace_dir": tmp_path, "normalise_rewards": normalises}
        faults = Faults()
        faults.check(Settings.model_validate(given).check_rows, environment)
        assert [fault.key for fault in faults] == ([] if normalises else keys)
