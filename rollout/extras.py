"""Packages of the extras in pyproject.toml, which the core does without."""

from __future__ import annotations

import json
import shlex
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mcp_rollout.gateway.errors import ConfigError

_OWN = {"gateway", "mcp_servers", "mcp_wire", "rollout"}
_VALUES, _UNPACKED = 100, 1000
"""Values, and bytes in memory, for a byte of a Parquet file. Rows that differ at all have far fewer."""
_SMALL = 1 << 16
"""Bytes by which a file may be longer than it is: footers are not small, and short files repeat themselves."""


@contextmanager
def needed(extra: str, what: str = "", *, file: str | None = None, key: str | None = None) -> Generator[None]:
    """For imports of what an extra has.

    Args:
        what: What needs it, for the message.

    Raises:
        ConfigError: A package of the extra is not installed.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] in _OWN:
            raise
        problem = f"{what} needs {error.name}, which is not installed".lstrip()
        raise ConfigError(problem, file=file, key=key, remedy=install_command(extra)) from error


def parquet_needed(file: str) -> AbstractContextManager[None]:
    """For imports of modules that read or write Parquet. Raises as `needed`."""
    return needed("parquet", "Parquet", file=file)


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation, from where it came: index, checkout or wheel (PEP 610)."""
    origin: dict[str, Any] = {}
    with suppress(PackageNotFoundError):
        origin = json.loads(distribution("mcp-rollout").read_text("direct_url.json") or "{}")
    source, option = "mcp-rollout", ""
    if (url := urlsplit(str(origin.get("url", "")))).scheme == "file":
        source = url2pathname(url.path)
        option = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {option}{shlex.quote(f'{source}[{extra}]')}"


class UnpacksTooFar(ValueError):
    """Of a Parquet file some hundred bytes may be gigabytes."""

    def __init__(self) -> None:
        super().__init__("unpacks to far more than its size")


def batches_within(file: Any, size: int, *, batch_size: int, **chosen: Any) -> Iterator[Any]:
    """Up to `batch_size` rows at a time of a `pyarrow.parquet.ParquetFile` of `size` bytes; `chosen` as `iter_batches`.

    Raises:
        UnpacksTooFar: it announces, or has, far more than files of its size.
    """
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    parts = [group.column(number) for group in groups for number in range(group.num_columns)]
    left, values = _UNPACKED * (size + _SMALL), sum(part.num_values for part in parts)
    if values > _VALUES * (size + _SMALL) or sum(part.total_uncompressed_size for part in parts) > left:
        raise UnpacksTooFar
    # Each row may repeat the longest value, which a column has once.
    longest = max((part.total_uncompressed_size for part in parts), default=0)
    for batch in file.iter_batches(min(batch_size, left // max(longest, 1)), **chosen):
        left -= batch.nbytes
        if left < 0:
            raise UnpacksTooFar
        yield batch
