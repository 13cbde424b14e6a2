"""data --check measures prompts as the trainer will render them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.data import data
from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]


def test_prompts_that_are_too_long_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sums.yaml").write_text(yaml.safe_dump({"servers": {"faulty": {"factory": "faulty:sound"}}}))
    mcp: dict[str, Any] = {"environment": "sums", "task": "test-1", "seed": 1, "tools": None}
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": text}],
            "extra_info": {"index": index, "mcp": mcp},
        }
        for index, text in enumerate(("Add.", "plum " * 3000))
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    model = str(make_tiny_model(tmp_path / "model", hidden=64, layers=1))
    check: dict[str, Any] = {"check": tmp_path / "rows.parquet", "environments_dir": tmp_path, "as_json": True}
    assert data(**check, tokenizer=model, max_prompt_length=1024) == 1
    said = json.loads(capsys.readouterr().out)
    assert [(problem["row"], problem["column"]) for problem in said["shown"]] == [(1, "prompt")]
    assert "raise data.max_prompt_length to at least" in said["shown"][0]["remedy"]
    with pytest.raises(ConfigError, match="--tokenizer"):
        data(**check, tokenizer=str(tmp_path / "none"), max_prompt_length=9)
