# pyright: basic, reportMissingImports=false
"""The environment variables of AReaL's mode with one process per rank, and the inference servers that they name."""

from __future__ import annotations

import asyncio
import os

from mcp_rollout.gateway.errors import ConfigError, raise_all

RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SERVERS = "AREAL_LLM_SERVER_ADDRS"


async def check_ranks(*, timeout_s: float) -> None:
    """Validate the variables, and wait for the servers: AReaL does so after it has loaded the model.

    Args:
        timeout_s: how long a server may take to accept a connection.

    Raises:
        ConfigError: a variable is missing, an address is none, or no server accepts connections there.
    """
    remedy = f"start the program with AReaL's launcher or torchrun, or set {', '.join(RANKS)}"
    missing = [_fault("is not set", name, remedy) for name in RANKS if not os.environ.get(name)]
    addresses = list(filter(None, os.environ.get(SERVERS, "").split(",")))
    if not addresses:
        missing.append(_fault("is not set", SERVERS, "set it to HOST:PORT,... of the SGLang servers that are running"))
    raise_all(missing)
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise _fault(f"{address!r} is not an address", SERVERS, "write HOST:PORT,...")
        try:
            async with asyncio.timeout(timeout_s):
                await _connected(host.strip("[]"), int(port))
        except TimeoutError:
            problem = f"no server accepts connections at {address} within {timeout_s:g} s (rollout.setup_timeout)"
            raise _fault(problem, SERVERS, "start the server, or correct the address") from None


async def _connected(host: str, port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            await asyncio.sleep(0.5)
        else:
            writer.close()
            return


def _fault(problem: str, name: str, remedy: str) -> ConfigError:
    return ConfigError(problem, file="environment variable", key=name, remedy=remedy)
