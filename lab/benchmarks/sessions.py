"""One cell of `benchmarks sessions`: N sessions over one transport, with steps in which the server waits a second.

    python -m lab.benchmarks.sessions TRANSPORT SESSIONS STEPS

The workload is the one that OpenEnv publishes. All sessions are leased, reset included, and held; then each takes its
steps without a barrier between them. Prints one `Cell` as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.benchmarks.costs import cpu_s, memory_kb, quantile
from lab.benchmarks.runs import print_figures
from lab.benchmarks.server_programs import listening, missing_descriptors
from lab.benchmarks.wait_server import MODULE
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.errors import GatewayError
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.process import tune_collector

WAIT_S = 1.0
LEASE_TIMEOUT_S = 600.0
OPENED_AT_ONCE = 256
"""As for OpenEnv: with all resets at once, the last ones of 16,384 wait longer than `reset_timeout_s`."""
TRANSPORTS = ("in_process", "stdio", "http", "http_sdk")
"""`http_sdk` is HTTP with the SDK's server in place of the kit's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """What one run measured."""

    sessions: int
    steps_per_s: float
    p50_s: float
    """Median of what a step took beyond the second that the server waits."""
    p99_s: float
    lost: int
    """Steps that failed, were answered wrongly, or were never taken."""
    client_ms: float
    """CPU time of the client per step; in process, the server's is part of it."""
    server_ms: float
    client_kb: float
    """Memory of the client per session that is held and idle."""
    server_kb: float
    open_s: float
    """Wall time until all sessions were leased and reset."""
    failures: dict[str, int]


class Run:
    """The sessions of one run, and what they saw."""

    def __init__(self, gateway: Gateway, sessions: int, steps: int) -> None:
        self._gateway, self._sessions, self._steps = gateway, sessions, steps
        self.waits: list[float] = []
        self.failures = Counter[str]()
        self._opening, self._playing = sessions, sessions
        self._gate = asyncio.Semaphore(OPENED_AT_ONCE)
        self.opened, self.start, self.played, self.end = (asyncio.Event() for _ in range(4))

    async def hold(self, number: int) -> None:
        """Leases a session, takes its steps, and holds it until all have."""
        is_open = False
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with self._gate:
                    lease = self._gateway.lease(trajectory=f"t{number}", task="t", seed=number)
                    session = await stack.enter_async_context(lease)
                is_open = True
                self._arrived()
                await self.start.wait()
                with contextlib.suppress(GatewayError):
                    await self._play(session, number)
                self._left()
                await self.end.wait()
        except GatewayError as error:
            self.failures[f"lease: {error.code}"] += 1
            if not is_open:
                self._arrived()
                self._left()

    async def _play(self, session: Session, number: int) -> None:
        for step in range(1, self._steps + 1):
            began = time.perf_counter()
            try:
                result = await session.call("step", {"wait_s": WAIT_S})
            except GatewayError as error:
                self.failures[error.code] += 1
                raise
            took = time.perf_counter() - began
            if result.is_error or result.structured != {"result": number * 1000 + step}:
                self.failures["wrong answer"] += 1
                return
            self.waits.append(took - WAIT_S)

    def _arrived(self) -> None:
        self._opening -= 1
        if not self._opening:
            self.opened.set()

    def _left(self) -> None:
        self._playing -= 1
        if not self._playing:
            self.played.set()


async def measure(entry: dict[str, Any], server: int | None, sessions: int, steps: int) -> Cell:
    """Runs the workload against the server of `entry`.

    Args:
        server: The process id of a server that is not a child of the gateway; 0 to find the gateway's child; None for a
            server in this process.
    """
    config = GatewayConfig.model_validate(
        {
            "servers": {"wait": {"required": True, **entry}},
            "max_sessions": sessions,
            "lease_timeout_s": LEASE_TIMEOUT_S,
        }
    )
    async with Gateway(config) as gateway:
        # What the first call compiles belongs to no session.
        async with gateway.lease(trajectory="first", task="t", seed=0) as session:
            await session.call("step", {"wait_s": 0.0})
        pid = _server_of(os.getpid()) if server == 0 else server
        before = _memory(pid)
        tune_collector()
        run = Run(gateway, sessions, steps)
        began = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for number in range(sessions):
                tasks.create_task(run.hold(number))
            await run.opened.wait()
            open_s = time.perf_counter() - began
            # Before the clock starts, since it collects garbage, which takes long with thousands of sessions.
            held = _memory(pid)
            began, cpu = time.perf_counter(), _cpu(pid)
            run.start.set()
            await run.played.wait()
            wall_s, spent = time.perf_counter() - began, _cpu(pid)
            run.end.set()
    taken = max(1, len(run.waits))
    return Cell(
        sessions=sessions,
        steps_per_s=len(run.waits) / wall_s,
        p50_s=quantile(run.waits or [0.0], 0.5),
        p99_s=quantile(run.waits or [0.0], 0.99),
        lost=sessions * steps - len(run.waits),
        client_ms=1e3 * (spent[0] - cpu[0]) / taken,
        server_ms=1e3 * (spent[1] - cpu[1]) / taken,
        client_kb=(held[0] - before[0]) / sessions,
        server_kb=(held[1] - before[1]) / sessions,
        open_s=open_s,
        failures=dict(run.failures),
    )


def _cpu(server: int | None) -> tuple[float, float]:
    return time.process_time(), 0.0 if server is None else cpu_s(server)


def _memory(server: int | None) -> tuple[int, int]:
    gc.collect()
    return memory_kb(os.getpid()), 0 if server is None else memory_kb(server)


def _server_of(pid: int) -> int:
    """The wait server among the descendants of a process."""
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if path.name.isdigit() and MODULE.encode() in (path / "cmdline").read_bytes() and pid in _ancestors(path):
                return int(path.name)
    raise RuntimeError(f"no {MODULE} below process {pid}")


def _ancestors(path: Path) -> list[int]:
    found: list[int] = []
    while (parent := int((path / "stat").read_text().rpartition(")")[2].split()[1])) > 1:
        found.append(parent)
        path = Path("/proc") / str(parent)
    return found


def main(transport: str, sessions: int, steps: int) -> Cell:
    """Runs one cell. Raises SystemExit with a message if the process may not open enough files."""
    if transport == "in_process":
        return asyncio.run(measure({"factory": f"{MODULE}:in_process"}, None, sessions, steps))
    if transport == "stdio":
        entry = {"command": sys.executable, "args": ["-m", MODULE, "kit"]}
        return asyncio.run(measure(entry, 0, sessions, steps))
    if message := missing_descriptors(sessions):
        raise SystemExit(f"error: {message}")
    kind = "sdk" if transport == "http_sdk" else "kit"
    with listening([sys.executable, "-m", MODULE, kind]) as (process, port):
        return asyncio.run(measure({"url": f"http://127.0.0.1:{port}/mcp"}, process.pid, sessions, steps))


if __name__ == "__main__":
    print_figures(lambda: asdict(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
