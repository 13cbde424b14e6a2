# pyright: basic
# pyarrow ships no types.
"""Read and write dataset rows in the Parquet form that verl reads."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from mcp_rollout.gateway.errors import ConfigError, not_written
from mcp_rollout.gateway.private_files import replacing
from mcp_rollout.rollout.environment.task import Task, VerlColumns, WorldCall
from mcp_rollout.rollout.extras import UnpacksTooFar, batches_within, parquet_needed

_READ_ROWS = 512
"""Rows that are unpacked at a time."""


@cache
def _schema() -> Any:
    """The types are explicit: a column that is null in every row has its type, and two files can be concatenated."""
    import pyarrow as pa

    world, names = {"task": pa.string(), "seed": pa.int64()}, pa.list_(pa.string())
    calls = pa.string()  # JSON, since nested objects would be filled up with nulls
    mcp = {"environment": pa.string(), **world, "tools": names, "later_tools": names, "setup": calls, "check": calls}
    extra_info = {
        "index": pa.int64(),
        "split": pa.string(),
        "mcp": pa.struct(mcp),
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


def read_rows(path: Path | str) -> Iterator[dict[str, Any]]:
    """Read the rows of a file, in order.

    Raises:
        ConfigError: the file does not exist, is not a Parquet file, unpacks to far more than its size, or pyarrow is
            not installed.
    """
    with _opened(path) as pq, pq.ParquetFile(path) as file:
        try:
            for batch in batches_within(file, Path(path).stat().st_size, batch_size=_READ_ROWS):
                yield from batch.to_pylist()
        except UnpacksTooFar as error:
            raise ConfigError(str(error), file=path, remedy="write it again") from error


def count_rows(path: Path) -> int:
    """The number of rows of a file, without reading them. Raises ConfigError as `read_rows`."""
    with _opened(path) as pq, pq.ParquetFile(path) as file:
        return file.metadata.num_rows


@contextmanager
def _opened(path: Path | str) -> Generator[Any]:
    """`pyarrow.parquet`, whose errors about this file become ConfigErrors."""
    with parquet_needed(str(path)):
        import pyarrow as pa
        import pyarrow.parquet as pq
    if Path(path).is_file():
        check_suffix(Path(path))
    try:
        yield pq
    except FileNotFoundError as error:
        raise ConfigError("no such file", file=path, remedy="write it with `mcp-rollout data`") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"is not a parquet file: {error}", file=path, remedy="write it again") from error


def check_suffix(path: Path) -> None:
    """Raise ConfigError where verl would not know the format, which it takes from the name once Ray runs."""
    if path.suffix != ".parquet":
        raise ConfigError("does not end in .parquet", file=path, remedy=f"name it {path.stem}.parquet")


def write_parquet(path: Path, tasks: list[Task], *, split: str, agent: str) -> None:
    """Write rows for verl; the file appears whole or not at all. A task keeps what its row had for verl's rewards.

    Raises:
        ConfigError: the file cannot be written, the tasks' own columns are of several types, or pyarrow is not
            installed.
    """
    with parquet_needed(str(path)):
        import pyarrow as pa
        import pyarrow.parquet as pq
    rows = [_row(index, task, split, agent) for index, task in enumerate(tasks)]
    schema = _schema()
    for column, own in (("reward_model", ("ground_truth",)), ("extra_info", _own_keys(tasks))):
        schema = _widened(schema, column, own, rows, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), partial)
    except OSError as error:
        raise not_written(error, path, "-o") from error


def _own_keys(tasks: Sequence[Task]) -> list[str]:
    return list(dict.fromkeys(name for task in tasks if task.verl for name in task.verl.extra_info))


def _widened(schema: Any, column: str, own: Iterable[str], rows: list[dict[str, Any]], path: Path) -> Any:
    """The schema with the types of a column's fields that the rows brought along."""
    import pyarrow as pa

    place = schema.get_field_index(column)
    kinds = {each.name: each.type for each in schema.field(place).type.fields}
    for name in own:
        try:
            found = pa.array([row[column].get(name) for row in rows]).type
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            remedy = "give it one type in all rows, such as JSON text"
            raise ConfigError(
                f"has several types: {error}", file=path, key=f"{column}.{name}", remedy=remedy
            ) from error
        kinds[name] = kinds.get(name, pa.string()) if pa.types.is_null(found) else found
    return schema.set(place, pa.field(column, pa.struct(kinds)))


def _row(index: int, task: Task, split: str, agent: str) -> dict[str, Any]:
    world = {"task": task.task, "seed": task.seed}
    calls = {"setup": _json(task.setup), "check": _json(task.check)}
    mcp = {
        "environment": task.environment,
        **world,
        "tools": task.tools,
        "later_tools": task.later_tools or None,
        **calls,
    }
    own = task.verl or VerlColumns(data_source=task.environment)
    truth = task.answer if own.ground_truth is None else own.ground_truth
    extra = {"split": split, **own.extra_info, "index": index, "mcp": mcp, "tools_kwargs": {"mcp": world}}
    return {
        "data_source": own.data_source or task.environment,
        "agent_name": agent,
        "prompt": list(task.prompt),
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": extra,
    }


def _json(calls: Iterable[WorldCall]) -> str | None:
    written = [call.model_dump(mode="json", exclude_defaults=True) for call in calls]
    return json.dumps(written, ensure_ascii=False) if written else None
