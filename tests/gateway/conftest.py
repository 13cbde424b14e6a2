"""Servers for the gateway's tests: real processes and real in-process servers."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_rollout import GatewayConfig

MINI = Path(__file__).with_name("mini_server.py")


@pytest.fixture
def mini() -> Callable[..., dict[str, Any]]:
    """`mini("echo", "die", scope="process")`: a server entry for a process that serves these tools."""

    def entry(*tools: str, **more: Any) -> dict[str, Any]:
        return {"command": sys.executable, "args": ["-I", "-S", str(MINI), *tools], "required": True, **more}

    return entry


@pytest.fixture
def config() -> Callable[..., GatewayConfig]:
    """`config(name=entry, ..., max_sessions=1)`: entries by name, bounds beside them."""

    def make(**given: Any) -> GatewayConfig:
        servers = {name: entry for name, entry in given.items() if isinstance(entry, dict)}
        bounds = {name: value for name, value in given.items() if not isinstance(value, dict)}
        return GatewayConfig.model_validate({"servers": servers, **bounds})

    return make
