"""Packages of the extras in pyproject.toml, which the core does without."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from gateway.errors import ConfigError

_OWN = {"gateway", "mcp_servers", "mcp_wire", "rollout"}


@contextmanager
def parquet_needed(what: str) -> Generator[None]:
    """For imports of modules that read or write Parquet.

    Args:
        what: what is read or written, for the message.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _OWN:
            raise
        problem = f"Parquet needs {error.name}, which is not installed"
        raise ConfigError(problem, file=what, remedy="pip install 'mcp-rollout[parquet]'") from error
