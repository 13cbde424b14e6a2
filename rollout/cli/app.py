"""Commands and their options. Each body imports what it needs, so that `--help` answers at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, cast

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
trace_app = typer.Typer(no_args_is_help=True, help="Read recorded trajectories.")
app.add_typer(trace_app, name="trace")
bench_app = typer.Typer(no_args_is_help=True, help="Measure what the gateway costs on this machine.")
app.add_typer(bench_app, name="bench")
app.info.help = "Train tool-using models against MCP servers: look at servers, make rows, roll out, read traces."

Target = Annotated[str, typer.Argument(help="An mcpServers file, or an environment: its YAML file or its name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
EnvironmentsDir = Annotated[Path, typer.Option("--environments-dir", help="Where environment names are looked up.")]
ENVIRONMENTS = Path("configs/environments")


@app.callback()
def prepare(context: typer.Context) -> None:
    """Runs before every command, and not for `--help`."""
    from rollout.cli.target import quiet_logs

    quiet_logs(context.invoked_subcommand)


@app.command()
def tools(
    file: Target,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Say what the tools cost in a prompt of this model.")
    ] = None,
    json: AsJson = False,
    environments_dir: EnvironmentsDir = ENVIRONMENTS,
) -> None:
    """List the tools that servers offer, as the policy and the harness see them."""
    from rollout.cli.servers import list_tools

    raise typer.Exit(list_tools(file, environments_dir, tokenizer=tokenizer, as_json=json))


@app.command("tool-config")
def tool_config(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="mcpServers files, or environments.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The lock file to write.")],
    accept: Annotated[bool, typer.Option("--accept", help="Write it though it differs from the one there.")] = False,
    json: AsJson = False,
    environments_dir: EnvironmentsDir = ENVIRONMENTS,
) -> None:
    """Write the servers' policy tools as verl's tool_config, which locks what the model sees.

    A lock that is there already is compared: where tools differ, nothing is written, the difference is shown and the
    exit status is 2, unless --accept is given.
    """
    from rollout.cli.servers import write_tool_config

    raise typer.Exit(write_tool_config(files, environments_dir, output, accept=accept, as_json=json))


@app.command()
def call(
    file: Target,
    tool: Annotated[str, typer.Argument(metavar="[SERVER/]TOOL", help="With SERVER, only that server is started.")],
    arguments: Annotated[str, typer.Argument(help="Its arguments, a JSON object.")] = "{}",
    task: Annotated[
        str | None, typer.Option(help="Task to reset the started servers to; not given, nothing is reset.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed to reset to; it is sent with the call in any case.")] = 0,
    json: AsJson = False,
    environments_dir: EnvironmentsDir = ENVIRONMENTS,
) -> None:
    """Call one tool: start servers, lease a session, call, release, stop. Exit status 1 where the tool says no."""
    from rollout.cli.call import call_tool

    raise typer.Exit(call_tool(file, environments_dir, tool, arguments, task=task, seed=seed, as_json=json))


@app.command()
def doctor(
    file: Target,
    server: Annotated[
        list[str] | None, typer.Option("--server", help="Examine this server only; may be repeated.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Say what the tools cost in a prompt of this model.")
    ] = None,
    call: Annotated[
        list[str] | None,
        typer.Option("--call", metavar="[SERVER/]TOOL=JSON", help="A call that probes may make; may be repeated."),
    ] = None,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Probes may call every tool, not only those annotated read-only.")
    ] = False,
    at_a_time: Annotated[
        int, typer.Option("--at-a-time", min=1, help="Servers examined at a time; 1 for exact latencies.")
    ] = 4,
    json: AsJson = False,
    environments_dir: EnvironmentsDir = ENVIRONMENTS,
) -> None:
    """Find out whether servers can be trained against, and under which scope.

    Exit status 0 where all can, 1 where one cannot, 3 where the probes could not find out and say what to add.
    """
    from rollout.cli.doctor import DoctorOptions, examine_file

    options = DoctorOptions(
        servers=tuple(server or ()),
        tokenizer=tokenizer,
        calls=tuple(call or ()),
        allow_writes=allow_writes,
        at_a_time=at_a_time,
    )
    raise typer.Exit(examine_file(file, environments_dir, options, as_json=json))


@app.command("check-env")
def check_env(
    environment: Annotated[str, typer.Argument(help="The environment: its YAML file or its name.")],
    tasks: Annotated[int, typer.Option("-n", min=1, help="How many test tasks are played.")] = 3,
    task: Annotated[str | None, typer.Option(help="Play this task, where the environment lists none.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of --task; 0 where not given.")] = None,
    user_varies: Annotated[
        bool, typer.Option("--user-varies", help="The user is a model or a person: its words may differ.")
    ] = False,
    json: AsJson = False,
    environments_dir: EnvironmentsDir = ENVIRONMENTS,
) -> None:
    """Examine whether an environment keeps the harness contract. Exit status 1 where a clause fails."""
    from rollout.cli.check_env import CheckOptions
    from rollout.cli.check_env import check_env as examine

    options = CheckOptions(tasks=tasks, task=task, seed=seed, user_varies=user_varies)
    raise typer.Exit(examine(environment, environments_dir, options, as_json=json))


@app.command("new-server")
def new_server(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and _.")],
    out: Annotated[Path, typer.Option("--out", help="Where its directory is made.")] = Path(),
    json: AsJson = False,
) -> None:
    """Write a new environment: a working server, its YAML, rows, test, and how to go on. Nothing is overwritten."""
    from rollout.cli.new_server import write_server

    raise typer.Exit(write_server(name, out, as_json=json))


@app.command()
def data(
    environment: Annotated[
        str | None, typer.Argument(help="The environment: its YAML file or its name; none with --check.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The parquet file to write.")] = None,
    split: Annotated[str, typer.Option(help="train or test.")] = "train",
    rows: Annotated[int | None, typer.Option("-n", min=1, help="How many rows; all tasks where not given.")] = None,
    tools: Annotated[
        str | None, typer.Option(help="Tools the policy may use, comma-separated; all by default.")
    ] = None,
    agent: Annotated[str, typer.Option(help="verl's agent_name of the rows.")] = "mcp_agent",
    check: Annotated[Path | None, typer.Option("--check", help="Examine this parquet file, and write none.")] = None,
    tool_config: Annotated[
        Path | None, typer.Option("--tool-config", help="--check: the lock to compare with.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(metavar="MODEL", help="--check: whose prompts are measured.")] = None,
    max_prompt_length: Annotated[
        int | None, typer.Option("--max-prompt-length", min=1, help="--check: how long a prompt may be, in tokens.")
    ] = None,
    json: AsJson = False,
    environments_dir: EnvironmentsDir = ENVIRONMENTS,
) -> None:
    """Write an environment's tasks as rows for verl, or examine rows before a run.

    With --check every problem is named with row, column and remedy; the exit status is 1 where there is one.
    """
    from gateway.errors import ConfigError

    if check is not None:
        from rollout.cli.data_check import CheckOptions, check_rows

        if environment is not None or output is not None:
            raise ConfigError("examines a file and writes none", key="--check", remedy="leave ENVIRONMENT and -o out")
        asked = CheckOptions(
            file=check, tool_config=tool_config, tokenizer=tokenizer, max_prompt_length=max_prompt_length
        )
        raise typer.Exit(check_rows(environments_dir, asked, as_json=json))
    from rollout.cli.data import DataOptions, write_rows

    if environment is None or output is None:
        missing = "ENVIRONMENT" if environment is None else "-o"
        raise ConfigError("is not given", key=missing, remedy="mcp-rollout data ENVIRONMENT -o FILE, or --check FILE")
    selected = None if tools is None else tuple(name.strip() for name in tools.split(","))
    options = DataOptions(output=output, split=split, rows=rows, tools=selected, agent=agent)
    raise typer.Exit(write_rows(environment, environments_dir, options, as_json=json))


@app.command()
def run(
    environments: Annotated[list[str], typer.Argument(metavar="ENV...", help="Environments: YAML files or names.")],
    engine: Annotated[
        str, typer.Option(help="expert, random, none, a model's directory, or the URL of an SGLang or vLLM server.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Directory for the traces.")],
    rows: Annotated[
        int | None, typer.Option("-n", min=1, help="How many rows of each environment; all where not given.")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Trajectories per row.")] = 1,
    split: Annotated[str, typer.Option(help="train or test.")] = "test",
    resume: Annotated[bool, typer.Option("--resume", help="Keep what is in --out and run what is missing.")] = False,
    concurrency: Annotated[int, typer.Option(min=1, help="Trajectories at a time.")] = 8,
    response_tokens: Annotated[
        int | None, typer.Option(min=1, help="Token budget after the prompt; 65536 where not given.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Token budget of one turn.")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token. For models.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=1e-6, max=1, help="1 excludes nothing. For models.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=-1, help="-1 excludes nothing. For models.")] = -1,
    seed: Annotated[int, typer.Option(min=0, help="The seeds of all turns derive from it; random's, too.")] = 0,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="PATH", help="A server's tokenizer, where its model is not on this machine.")
    ] = None,
    tool_format: Annotated[str, typer.Option(help="How the model writes calls, by verl's name for it.")] = "hermes",
    success_at: Annotated[float, typer.Option(help="The least reward that counts as a success in pass@k.")] = 1.0,
    connect_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a server to answer.")] = 10.0,
    generate_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one turn's generation.")] = 1800.0,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment variable that holds the server's key.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Of a model in process: cpu, cuda, cuda:1.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of a model in process: float32, bfloat16; as saved else.")] = None,
    json: AsJson = False,
    environments_dir: EnvironmentsDir = ENVIRONMENTS,
) -> None:
    """Evaluate: roll environments out without a trainer. Exit status 1 where a trajectory failed.

    Reports pass@k (one of k samples succeeds) and pass^k (all of them do), with 95% intervals over the rows.
    """
    from rollout.cli.run import RunOptions, run_environments

    options = RunOptions(
        engine=engine,
        out=out,
        rows=rows,
        samples=samples,
        split=split,
        resume=resume,
        concurrency=concurrency,
        response_tokens=response_tokens,
        max_tokens=max_tokens,
        tokenizer=tokenizer,
        tool_format=tool_format,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        success_at=success_at,
        connect_timeout=connect_timeout,
        generate_timeout=generate_timeout,
        api_key_env=api_key_env,
        device=device,
        dtype=dtype,
    )
    raise typer.Exit(run_environments(environments, environments_dir, options, as_json=json))


@trace_app.command("ls")
def trace_ls(
    directory: Annotated[Path, typer.Argument(help="Where the traces are.")],
    json: AsJson = False,
) -> None:
    """List trajectories, one line each; with --json one object per line.

    `row` is the dataset's row and which of its sibling trajectories this is; a `v` after the step means validation.
    """
    from rollout.cli.trace import list_traces

    raise typer.Exit(list_traces(directory, as_json=json))


@trace_app.command("show")
def trace_show(
    directory: Annotated[Path, typer.Argument(help="Where the traces are.")],
    trajectory: Annotated[str, typer.Argument(metavar="ID", help="The trajectory's id, or an unambiguous beginning.")],
    full: Annotated[bool, typer.Option("--full", help="Unfold thinking and long results.")] = False,
    json: AsJson = False,
) -> None:
    """Read one trajectory turn by turn, thinking folded."""
    from rollout.cli.trace import show_trace

    raise typer.Exit(show_trace(directory, trajectory, full=full, as_json=json))


@trace_app.command("stats")
def trace_stats(
    directory: Annotated[Path, typer.Argument(help="Where the traces are.")],
    tokenizer: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Count as this model would (an expert's traces hold bytes).")
    ] = None,
    tool_config: Annotated[
        Path | None, typer.Option(help="The lock with the tools' schemas; without it the servers are asked.")
    ] = None,
    json: AsJson = False,
    environments_dir: EnvironmentsDir = ENVIRONMENTS,
) -> None:
    """How long trajectories are, how they end, and which lengths a training run should allow for."""
    from rollout.cli.trace_stats import show_stats

    status = show_stats(
        directory, tokenizer=tokenizer, tool_config=tool_config, environments_dir=environments_dir, as_json=json
    )
    raise typer.Exit(status)


@trace_app.command("export")
def trace_export(
    directory: Annotated[Path, typer.Argument(help="Where the traces are.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The JSON lines file to write.")],
    sft: Annotated[bool, typer.Option("--sft", help="As conversations for supervised training.")] = False,
    preferences: Annotated[
        bool, typer.Option("--preferences", help="As pairs of a better and a worse trajectory of the same row.")
    ] = False,
    min_reward: Annotated[float, typer.Option(help="With --sft: leave out trajectories that scored less.")] = 1.0,
    min_margin: Annotated[
        float, typer.Option(help="With --preferences: by how much a pair's rewards differ at least.")
    ] = 0.5,
    tool_config: Annotated[
        Path | None, typer.Option(help="The lock with the tools' schemas; without it the servers are asked.")
    ] = None,
    json: AsJson = False,
    environments_dir: EnvironmentsDir = ENVIRONMENTS,
) -> None:
    """Write trajectories as training data: those worth imitating, or pairs. Exit status 1 where there is none."""
    from rollout.cli.trace_export import export_traces

    status = export_traces(
        directory,
        output,
        sft=sft,
        preferences=preferences,
        min_reward=min_reward,
        min_margin=min_margin,
        tool_config=tool_config,
        environments_dir=environments_dir,
        as_json=json,
    )
    raise typer.Exit(status)


@bench_app.command("call")
def bench_call(
    calls: Annotated[int, typer.Option(min=10, help="Calls per transport, of each side.")] = 400,
    connects: Annotated[int, typer.Option(min=1, help="Calls with a connection of their own, per transport.")] = 16,
    json: AsJson = False,
) -> None:
    """A call through the gateway beside the SDK's own client, and beside connecting for each call."""
    from rollout.cli.bench import bench_calls

    raise typer.Exit(bench_calls(calls, connects, as_json=json))


@bench_app.command("lease")
def bench_lease(
    file: Target,
    leases: Annotated[int, typer.Option("-n", min=2, help="How many leases.")] = 50,
    json: AsJson = False,
    environments_dir: EnvironmentsDir = ENVIRONMENTS,
) -> None:
    """A lease of these servers, reset included: the first, and those after it."""
    from rollout.cli.bench import bench_leases

    raise typer.Exit(bench_leases(file, environments_dir, leases, as_json=json))


def main() -> None:
    """Entry point: one message on standard error and status 2 for whatever the user can put right."""
    try:
        app()
    except Exception as error:  # the command line's boundary: only the two kinds below are the user's to read
        from gateway.errors import ConfigError, GatewayError, faults_of

        cause: Exception = error
        while isinstance(cause, ExceptionGroup):  # from a task group; the first one is reason enough
            cause = cast("ExceptionGroup[Exception]", cause).exceptions[0]
        if not isinstance(cause, ConfigError | GatewayError):
            raise
        for fault in faults_of(cause) if isinstance(cause, ConfigError) else [cause]:
            typer.echo(f"error: {fault}", err=True)
        sys.exit(2)
