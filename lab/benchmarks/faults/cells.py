"""The cells of the table: one client with one setting under one fault, in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.benchmarks.faults.judge import Figures, judge, read_log, read_reports
from lab.benchmarks.faults.page import Cell
from lab.benchmarks.faults.plan import ONLY_HTTP, Fault, Plan
from lab.benchmarks.faults.workload import Task
from lab.benchmarks.server_programs import listening

SERVER = Path(__file__).with_name("server.py")
_BOUND_S = 1200.0
"""For one cell, most of which is deadlines."""


@dataclass(frozen=True, kw_only=True)
class Client:
    """One row of the table."""

    label: str
    adapter: str
    python: str = sys.executable
    over: str = "http"
    distribution: str = ""
    """Whose version is printed."""

    @property
    def version(self) -> str:
        """`name version`; empty if the environment or the distribution is missing."""
        if not self.distribution:
            return "the checkout of the run"
        code = f"from importlib.metadata import version; print(version({self.distribution!r}))"
        found = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=False)
        return f"{self.distribution} {found.stdout.strip()}" if found.returncode == 0 else ""


def clients(fastmcp: str, verifiers: str, openenv: str) -> dict[str, Client]:
    sdk: dict[str, Any] = {"adapter": "sdk_client", "python": fastmcp, "distribution": "mcp"}
    fast: dict[str, Any] = {"adapter": "fastmcp_client", "python": fastmcp, "distribution": "fastmcp"}
    return {
        "gateway-stdio": Client(label="our gateway, stdio", adapter="gateway_client", over="stdio"),
        "gateway-http": Client(label="our gateway, HTTP", adapter="gateway_client"),
        "serve": Client(label="our gateway, `serve`", adapter="serve_client"),
        "sdk-serve": Client(label="SDK through `serve`", adapter="sdk_through_serve"),
        "sdk-stdio": Client(label="SDK, stdio", over="stdio", **sdk),
        "sdk-http": Client(label="SDK, HTTP", **sdk),
        "fastmcp-stdio": Client(label="FastMCP, stdio", over="stdio", **fast),
        "fastmcp-http": Client(label="FastMCP, HTTP", **fast),
        "verifiers": Client(
            label="verifiers, HTTP", adapter="verifiers_client", python=verifiers, distribution="verifiers"
        ),
        "openenv": Client(label="OpenEnv, HTTP", adapter="openenv_client", python=openenv, distribution="openenv"),
    }


@contextmanager
def target_of(over: str, folder: Path, plan: Plan) -> Generator[dict[str, Any]]:
    """A server with this plan, as a client reaches it; its log is in `folder`."""
    argv = ["-I", "-S", str(SERVER), over, str(folder), json.dumps(dataclasses.asdict(plan))]
    Path(folder, "log.jsonl").touch()  # a client may make no call
    if over == "stdio":
        yield {"command": sys.executable, "args": argv}
        return
    with listening([sys.executable, *argv]) as (_, port):
        yield {"url": f"http://127.0.0.1:{port}/mcp"}


def run_cell(client: Client, plan: Plan, best: bool, **sizes: Any) -> Figures:
    """One run of one client in a process of its own."""
    with tempfile.TemporaryDirectory() as home, target_of(client.over, Path(home), plan) as target:
        report = Path(home, "report.json")
        task = Task(target=target, best=best, report=str(report), **sizes)
        program = f"lab.benchmarks.faults.adapters.{client.adapter}"
        argv = [client.python, "-m", program, json.dumps(dataclasses.asdict(task))]
        ended = "it did not end"
        with suppress(subprocess.TimeoutExpired):
            ended = subprocess.run(
                argv, cwd=SERVER.parents[3], capture_output=True, text=True, timeout=_BOUND_S, check=False
            ).stderr
        log = read_log(Path(home, "log.jsonl").read_text().splitlines())
        if report.exists():
            return judge(task, log, read_reports(report.read_text()))
        return dataclasses.replace(judge(task, log, ()), problems={f"no report: {ended[-2000:]}": task.trajectories})


def measure(chosen: Sequence[Client], kinds: Sequence[Fault], seed: str, jobs: int) -> list[Cell]:
    """All cells, in order; a run without faults of each client and setting first."""
    wanted = [
        (client, best, kind)
        for kind in (None, *kinds)
        for client in chosen
        for best in (False, True)
        if kind not in ONLY_HTTP or client.over == "http"
    ]

    def one(cell: tuple[Client, bool, Fault | None]) -> Cell:
        client, best, kind = cell
        figures = run_cell(client, Plan(seed=seed, kinds=(kind,) if kind else ()), best)
        name = f"{client.label}, {'best' if best else 'defaults'}, {kind or 'no fault'}"
        sys.stderr.write(f"{name}: {dataclasses.asdict(figures)}\n")
        return Cell(client=client.label, best=best, fault=kind, figures=figures)

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, wanted))
