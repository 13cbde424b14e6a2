"""What the gateway, the loop and the traces cost on this machine, each beside its peer in the same run.

Other load of the machine affects both sides alike, so that the ratios are what can be relied on. The other programs
here are run by their names, see docs/performance.md.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from typing import Annotated, Any

import anyio
import typer
from rich.table import Table

from lab.benchmarks.calls import CALLERS, TYPICAL, CallCost, measure_calls
from lab.benchmarks.leases import measure_leases
from lab.benchmarks.runs import Repeats, medians, report, run_cell
from lab.benchmarks.sessions_command import bench_sessions
from mcp_rollout.rollout.cli.app import exit_with, main, quiet_logs
from mcp_rollout.rollout.cli.options import AsJson, EnvironmentsDir, File, load_target, output_console, print_json

app = typer.Typer(
    result_callback=exit_with,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Measure what the gateway costs on this machine.",
)
app.callback()(quiet_logs)


@app.command("call")
def bench_call(
    calls: Annotated[int, typer.Option(min=10, help="Calls per transport, of each side.")] = 400,
    connects: Annotated[int, typer.Option(min=1, help="Calls with their own connection, per transport.")] = 16,
    callers: Annotated[list[int] | None, typer.Option(min=1, help="Calls in flight; default: 1, 16, 64, 256.")] = None,
    repeats: Repeats = 1,
    as_json: AsJson = False,
) -> int:
    """Compare a call through the gateway with the SDK's own client, and with connecting for each call."""
    runs = [anyio.run(measure_calls, calls, connects, callers or CALLERS) for _ in range(repeats)]
    costs = medians([{transport: _flat(cost) for transport, cost in run.items()} for run in runs])
    if as_json:
        fields = {field: {transport: cost[field] for transport, cost in costs.items()} for field in costs["stdio"]}
        print_json({"calls": calls, "connects": connects, **fields})
        return 0
    table = Table("transport", "SDK, ms", "gateway, ms", "ratio", "callers", "SDK, CPU ms", "gateway, CPU ms", "ratio")
    for column in ("floor, CPU ms", "SDK, calls/s", "calls/s", "connecting, calls/s"):
        table.add_column(column)
    for transport, cost in costs.items():
        for in_flight, each in cost["by_callers"].items():
            is_typical = in_flight == str(TYPICAL)
            table.add_row(
                transport,
                *(
                    [_of(cost, "sdk_ms"), _of(cost, "session_ms"), _of(cost, "ratio_to_sdk")]
                    if is_typical
                    else [""] * 3
                ),
                in_flight,
                _of(each, "sdk_cpu_ms", 3),
                _of(each, "session_cpu_ms", 3),
                _of(each, "cpu_ratio_to_sdk"),
                _of(cost, "floor_cpu_ms", 3) if is_typical else "",
                _of(each, "sdk_calls_per_s", 0),
                _of(each, "calls_per_s", 0),
                _of(cost, "connecting_calls_per_s", 1) if is_typical else "",
            )
    output_console().print(table)
    return 0


@app.command("lease")
def bench_lease(
    file: File = "retail",
    leases: Annotated[int, typer.Option("-n", min=2, help="How many leases.")] = 50,
    repeats: Repeats = 1,
    as_json: AsJson = False,
    environments_dir: EnvironmentsDir = None,
) -> int:
    """Measure a lease of these servers, reset included, beside resets by the SDK's own clients.

    `cold_s` is the gateway's start and the first lease with a reset. It leaves out one lease between them, which finds
    a task to reset to.
    """
    config = load_target(file, environments_dir).config
    return report(medians([anyio.run(measure_leases, config, leases) for _ in range(repeats)]), as_json)


@app.command("start")
def bench_start(
    forks: Annotated[int, typer.Option(min=1, help="Processes that are forked and held.")] = 200,
    spawns: Annotated[int, typer.Option(min=1, help="Processes that are spawned and held.")] = 6,
    module: Annotated[
        str, typer.Option("-m", help="The server, as a module of Python.")
    ] = "mcp_rollout.mcp_servers.retail",
    repeats: Repeats = 1,
    as_json: AsJson = False,
) -> int:
    """Compare starting a process of a Python server by fork with spawning it, and lease forks that are ready."""
    given = [str(forks), str(spawns), "-m", module]
    return report(medians([run_cell("lab.benchmarks.starts", *given) for _ in range(repeats)]), as_json)


@app.command("turn")
def bench_turn(
    concurrency: Annotated[
        list[int] | None, typer.Option(min=1, help="Trajectories at a time, once for each; default: 16, 64, 256, 512.")
    ] = None,
    trajectories: Annotated[int, typer.Option(min=1, help="Of the comparison with verl, of each side.")] = 30,
    repeats: Repeats = 1,
    as_json: AsJson = False,
) -> int:
    """Play whole retail trajectories with an instant engine; compare a turn with verl's stock tool_agent."""
    runs: list[dict[str, Any]] = []
    for _ in range(repeats):
        sizes = concurrency or [16, 64, 256, 512]
        # As many for each size: while the first ones begin, and the last ones end, fewer are under way.
        played = str(max(64, *sizes))
        loop = {str(size): run_cell("lab.benchmarks.loop", str(size), played) for size in sizes}
        has_verl = find_spec("verl") is not None
        stock = run_cell("lab.benchmarks.stock_turn", str(trajectories), "15") if has_verl else "without verl"
        runs.append({"whole_trajectories": loop, "beside_stock": stock})
    return report(medians(runs), as_json)


@app.command("overlap")
def bench_overlap(
    trajectories: Annotated[int, typer.Option(min=2, help="At a time.")] = 512,
    turns: Annotated[int, typer.Option(min=2)] = 10,
    repeats: Repeats = 1,
    as_json: AsJson = False,
) -> int:
    """Measure the share of an engine's throughput that is kept while tools take 0.2 to 2 s, beside the SDK's client."""
    given = [str(trajectories), str(turns)]
    runs = [
        {
            f"{side}, {transport}": run_cell("lab.benchmarks.overlap", side, transport, *given)
            for transport in ("stdio", "http")
            for side in ("ours", "sdk")
        }
        for _ in range(repeats)
    ]
    return report(medians(runs), as_json)


@app.command("memory")
def bench_memory(
    trajectories: Annotated[int, typer.Option("-n", min=10, help="Short trajectories, sixteen at a time.")] = 100_000,
    as_json: AsJson = False,
) -> int:
    """Measure whether this process's memory stays flat while trajectories are leased, played, recorded and released."""
    return report(run_cell("lab.benchmarks.memory", str(trajectories), bound_s=3600.0), as_json)


@app.command("trace")
def bench_trace(
    records: Annotated[int, typer.Option("-n", min=1, help="Records that are written and looked through.")] = 1000,
    repeats: Repeats = 1,
    as_json: AsJson = False,
) -> int:
    """Measure writing and looking through traces, beside pydantic's JSON and a reader of each line."""
    return report(medians([run_cell("lab.benchmarks.traces", str(records)) for _ in range(repeats)]), as_json)


app.command("sessions")(bench_sessions)


def _flat(cost: CallCost) -> dict[str, Any]:
    """A call's cost with its ratios; top-level figures are those with `TYPICAL` callers in flight."""
    by_callers = {
        str(callers): {**asdict(each), "cpu_ratio_to_sdk": each.cpu_ratio_to_sdk}
        for callers, each in cost.by_callers.items()
    }
    ratios = {"ratio_to_sdk": cost.ratio_to_sdk, "ratio_to_connecting": cost.ratio_to_connecting}
    return {**asdict(cost), **by_callers[str(TYPICAL)], **ratios, "by_callers": by_callers}


def _of(figures: dict[str, Any], name: str, places: int = 2) -> str:
    return "" if figures[name] is None else f"{figures[name]:.{places}f}"


if __name__ == "__main__":
    main(app)
