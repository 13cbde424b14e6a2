# pyright: basic
# pyarrow ships no types.
"""Read and write dataset rows in the Parquet form that verl reads."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from gateway.errors import ConfigError
from gateway.private_files import replacing
from rollout.environment.task import Task
from rollout.extras import parquet_needed


@cache
def _schema() -> Any:
    """The types are explicit: a column that is null in every row has its type, and two files can be concatenated."""
    import pyarrow as pa

    world, names = {"task": pa.string(), "seed": pa.int64()}, pa.list_(pa.string())
    extra_info = {
        "index": pa.int64(),
        "split": pa.string(),
        "mcp": pa.struct({"environment": pa.string(), **world, "tools": names, "later_tools": names}),
        # Read by our tool class under verl's stock tool_agent, see rollout/verl/tool_agent_sessions.py.
        "tools_kwargs": pa.struct({"mcp": pa.struct(world)}),
    }
    return pa.schema(
        {
            "data_source": pa.string(),
            "agent_name": pa.string(),
            "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
            "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
            "extra_info": pa.struct(extra_info),
        }
    )


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read the rows of a file, in order.

    Raises:
        ConfigError: the file does not exist, is not a Parquet file, or pyarrow is not installed.
    """
    with _opened(path) as pq:
        table = pq.read_table(path)
    yield from table.to_pylist()


def count_rows(path: Path) -> int:
    """The number of rows of a file, without reading them. Raises ConfigError as `read_rows`."""
    with _opened(path) as pq, pq.ParquetFile(path) as file:
        return file.metadata.num_rows


@contextmanager
def _opened(path: Path) -> Generator[Any]:
    """`pyarrow.parquet`, whose errors about this file become ConfigErrors."""
    with parquet_needed(str(path)):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        yield pq
    except FileNotFoundError as error:
        raise ConfigError("no such file", file=path, remedy="write it with `mcp-rollout data`") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"is not a parquet file: {error}", file=path) from error


def write_parquet(path: Path, tasks: list[Task], *, split: str, agent: str) -> None:
    """Write rows for verl; the file appears whole or not at all.

    Raises:
        ConfigError: the file cannot be written, or pyarrow is not installed.
    """
    with parquet_needed(str(path)):
        import pyarrow as pa
        import pyarrow.parquet as pq
    rows = [_row(index, task, split, agent) for index, task in enumerate(tasks)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            pq.write_table(pa.Table.from_pylist(rows, schema=_schema()), partial)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror or error}", file=path, key="-o") from error


def _row(index: int, task: Task, split: str, agent: str) -> dict[str, Any]:
    world = {"task": task.task, "seed": task.seed}
    mcp = {"environment": task.environment, **world, "tools": task.tools, "later_tools": task.later_tools or None}
    return {
        "data_source": task.environment,
        "agent_name": agent,
        "prompt": list(task.prompt),
        "reward_model": {"style": "rule", "ground_truth": task.answer or ""},
        "extra_info": {"index": index, "split": split, "mcp": mcp, "tools_kwargs": {"mcp": world}},
    }
