"""Files of tasks of the field, as the programs that wrote them leave them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from field_cases import FieldCase, field_cases

from mcp_rollout.gateway.errors import ConfigError, faults_of
from mcp_rollout.rollout.environment.task_file import FileTask, read_tasks


def written(directory: Path, rows: list[dict[str, Any]] | str, by: str) -> Path:
    if by == "lines":
        path = directory / "tasks.jsonl"
        text = rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
        path.write_bytes(text.encode())
        return path
    assert isinstance(rows, list)
    path = directory / "tasks.parquet"
    if by == "pandas":
        pandas.DataFrame(rows).to_parquet(path)
    elif by == "bytes":
        columns = {name: pa.array([row[name].encode() for row in rows], pa.binary()) for name in rows[0]}
        pq.write_table(pa.table(columns), path)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def seen(tasks: list[FileTask]) -> dict[str, Any]:
    return {
        "messages": [task.messages for task in tasks],
        "answers": [task.answer for task in tasks],
        "seeds": [task.seed for task in tasks],
        "checks": [[call.model_dump(exclude_defaults=True) for call in task.check] for task in tasks],
    }


@pytest.mark.parametrize("case", field_cases("task_files"))
def test_a_file_of_tasks_is_read_or_refused_by_line(case: FieldCase, tmp_path: Path) -> None:
    path = written(tmp_path, case.given["rows"], case.given.get("written_by", "lines"))
    if "refused" in case.expected:
        with pytest.raises(ConfigError) as caught:
            read_tasks(path)
        faults = [str(fault).removeprefix(f"{path}: ") for fault in faults_of(caught.value)]
        assert len(faults) == len(case.expected["refused"]), faults
        assert all(map(str.startswith, faults, case.expected["refused"])), faults
    else:
        found = seen(read_tasks(path))
        assert {name: found[name] for name in case.expected} == case.expected
