"""What a resumed run keeps was played and scored as what it adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.evaluation.resume import compare_records
from mcp_rollout.rollout.trace.run_record import RunRecord, environment_identity, write_run_record

SERVERS = {"shop": {"command": "unused"}}


def record(tool: str = "sha256:1", **fields: Any) -> RunRecord:
    made = Environment.model_validate({"name": "shop", "file": "/shop.yaml", "servers": SERVERS, **fields})
    return RunRecord(
        kind="evaluation",
        environment=environment_identity(made),
        tools=[],
        tool_digests={"look": "sha256:0", "buy": tool},
        engine="expert",
        sampling={},
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"limits": {"assistant_turns": 7}}, "/shop.yaml: limits.assistant_turns: "),
        ({"thinking": {"loss": "mask"}}, "/shop.yaml: thinking.loss: "),
        ({"results": {"max_tokens": 16}}, "/shop.yaml: results.max_tokens: "),
        ({"strategy": {"use": "compact", "compact": {"keep_turns": 3}}}, "/shop.yaml: strategy.use: "),
        ({"filters": {"void": {"action": "penalise"}}}, "/shop.yaml: filters.void: "),
        ({"reward": {"weights": {"valid_calls": 1.0}}}, "/shop.yaml: reward.weights: "),
        ({"reward": {"weights": {"format": 1.0}}, "limits": {"tool_calls": 3}}, "/shop.yaml: limits.tool_calls: "),
        ({"tool": "sha256:2"}, "--out: holds traces of shop with other tools: buy (name another directory)"),
    ],
)
def test_trajectories_of_another_environment_are_not_kept(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    before, now = record(), record(**changed)
    kept = {write_run_record(tmp_path, before)}
    write_run_record(tmp_path, now)
    compare_records(tmp_path, kept, before)
    compare_records(tmp_path, {now.name, "of a record that is gone"}, now)
    with pytest.raises(ConfigError) as refused:
        compare_records(tmp_path, kept, now)
    assert said in str(refused.value) and str(tmp_path) in str(refused.value)
