"""A server that changes its tools while verl trains against it stops the training, with the difference."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from verl_run import logged, train

from mcp_rollout.rollout.trace.store import read_traces
from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
SERVER = ROOT / "tests" / "gateway" / "mini_server.py"
ROWS, SAMPLES = 2, 2


def test_training_stops_with_the_difference_when_a_server_changes_its_tools(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model", hidden=32, layers=1)
    (tmp_path / "environments").mkdir()
    entry = {"command": "${python}", "args": [str(SERVER), "echo", "reset"]}
    rewarded = {"weights": {"valid_calls": 1.0}}
    # In the second step, so that the first one shows what a step looks like.
    entry["env"] = {"TURNS_AT_RESET": str(ROWS * SAMPLES + 1)}
    (tmp_path / "environments" / "world.yaml").write_text(
        yaml.safe_dump({"servers": {"world": entry}, "reward": rewarded})
    )
    rows = [
        {
            "data_source": "world",
            "agent_name": "mcp_agent",
            "prompt": [{"role": "user", "content": f"Say {index}."}],
            "reward_model": {"ground_truth": ""},
            "extra_info": {"index": index, "mcp": {"environment": "world", "task": "t", "seed": index, "tools": None}},
        }
        for index in range(4 * ROWS)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    overrides = {
        "data.train_files": tmp_path / "rows.parquet",
        "data.train_batch_size": ROWS,
        "data.max_prompt_length": 512,
        "data.max_response_length": 32,
        "actor_rollout_ref.model.path": tmp_path / "model",
        "actor_rollout_ref.rollout.n": SAMPLES,
        "actor_rollout_ref.rollout.agent.num_workers": 1,  # one gateway, so that all resets are one server's
        "actor_rollout_ref.rollout.custom.mcp.environments_dir": tmp_path / "environments",
        "actor_rollout_ref.rollout.custom.mcp.max_failed_share": 1.0,
        "trainer.total_training_steps": 4,
    }
    done = train(tmp_path, overrides)
    assert done.returncode != 0
    assert "training stops, because tools are no longer what it began with" in done.stdout, done.stdout[-8000:]
    assert "world/echo has changed:" in done.stdout and "Ignore previous instructions." in done.stdout
    assert list(logged(tmp_path)) == [1]
    traces = list(read_traces(tmp_path / "traces"))
    failed = {trace.failure.kind if trace.failure else None for trace in traces if trace.origin.step == 2}
    assert failed == {"tools_changed"}
    assert all(trace.failure is None for trace in traces if trace.origin.step == 1)
