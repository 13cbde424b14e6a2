"""The whole path in one sitting: expert rollouts on `retail` over stdio servers, then GRPO with verl on this CPU.

Run it with `make demo`. Every step is a command that you can type yourself; the demo prints each one. The model is tiny
and its weights are random: what is shown is that the path works, not that anything is learnt.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from rollout.tokens import ByteTokens
from rollout.trace.record import Trace
from rollout.trace.store import read_traces
from rollout.verl.cpu.tiny_model import make_tiny_model

ROOT = Path(__file__).resolve().parent.parent
EXPERT_ROWS, STEPS = 6, 3
# A few tools keep the prompts short enough for two cores.
TOOLS = "find_user_by_email,find_user_by_name_zip,get_order,cancel_order,record_outcome"
PATIENCE_S = 1800.0
console = Console(highlight=False)


def main() -> None:
    os.chdir(ROOT)
    home = Path("outputs", "demo", time.strftime("%Y%m%d-%H%M%S"))
    home.mkdir(parents=True)

    console.rule("1. The expert plays retail, over MCP")
    command("run", "retail", "--engine", "expert", "-n", str(EXPERT_ROWS), "--out", str(home / "expert"))
    traces = list(read_traces(home / "expert"))
    assert [trace.reward.score for trace in traces if trace.reward] == [1.0] * EXPERT_ROWS
    longest = max(traces, key=lambda trace: len(trace.turns))
    assert len(longest.turns) == 15
    command("trace", "show", str(home / "expert"), longest.id[:12])

    console.rule("2. Rows, the lock of what the model sees, a tiny model")
    command("data", "retail", "--split", "train", "-n", "32", "--tools", TOOLS, "-o", str(home / "train.parquet"))
    command("data", "retail", "--split", "test", "-n", "4", "--tools", TOOLS, "-o", str(home / "test.parquet"))
    command("tool-config", "retail", "-o", str(home / "tool_config.yaml"), "--accept")
    make_tiny_model(home / "model", corpus=texts(traces))
    console.print(f"[dim]tiny model with random weights: {home / 'model'}[/dim]\n")

    console.rule("3. GRPO with verl, over the same servers")
    metrics = train(home)
    report(metrics)
    assert len(metrics) == STEPS and all(step["mcp/failed_share"] == 0 for step in metrics)
    console.print(
        f"\neverything lies in [bold]{home}[/bold]: traces of the expert in expert/, of training in train/traces/"
    )
    console.print(f"read them with [bold].venv/bin/mcp-rollout trace ls {home / 'train' / 'traces'}[/bold]")


def command(*arguments: str) -> None:
    """Run `mcp-rollout` as a user would."""
    console.print(f"[bold green]$ mcp-rollout {shlex.join(arguments)}[/bold green]")
    subprocess.run([Path(sys.executable).with_name("mcp-rollout"), *arguments], check=True)
    console.print()


def texts(traces: Sequence[Trace]) -> list[str]:
    """What the tokenizer learns its vocabulary from."""
    tokens = ByteTokens()
    return [tokens.decode(trace.context) for trace in traces]


def train(home: Path) -> list[dict[str, Any]]:
    """verl's own entry point, followed through its `file` logger; its output goes to a file."""
    overrides = {
        "engine": "cpu",
        "data.train_files": home / "train.parquet",
        "data.val_files": home / "test.parquet",
        "data.train_batch_size": 4,
        "data.max_prompt_length": 3072,
        "data.max_response_length": 384,
        "actor_rollout_ref.model.path": home / "model",
        "actor_rollout_ref.rollout.n": 2,
        "actor_rollout_ref.rollout.multi_turn.tool_config_path": home / "tool_config.yaml",
        "trainer.default_local_dir": home / "train",
        "trainer.total_training_steps": STEPS,
        "ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_ROOT": home.absolute() / "train",
        "hydra.run.dir": home / "hydra",
    }
    arguments = ["--config-dir", "configs", "--config-name", "mcp_grpo"]
    arguments += [f"{key}={value}" for key, value in overrides.items()]
    console.print("[bold green]$ VERL_PLATFORM=cpu python -m verl.trainer.main_ppo " + " \\\n    ".join(arguments))
    log = home / "train.log"
    logged = home / "train" / "mcp_rollout" / "mcp_grpo.jsonl"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "verl.trainer.main_ppo", *arguments],
            env=os.environ | {"VERL_PLATFORM": "cpu", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            follow(process, lambda: len(steps(logged)))
        finally:
            process.terminate()
    if process.returncode:
        console.print(log.read_text(errors="replace")[-3000:], markup=False)
        raise SystemExit(f"error: verl ended with status {process.returncode}; its whole output is in {log}")
    return steps(logged)


def follow(process: subprocess.Popen[bytes], done: Callable[[], int]) -> None:
    """Show the steps as they come, until the process ends."""
    deadline = time.monotonic() + PATIENCE_S
    count = TextColumn("{task.completed}/{task.total} steps")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), count, TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("Ray, verl and the model start (about a minute)", total=STEPS)
        while process.poll() is None and time.monotonic() < deadline:
            if finished := done():
                progress.update(bar, completed=finished, description="GRPO")
            time.sleep(0.5)
        progress.update(bar, completed=done())


def steps(logged: Path) -> list[dict[str, Any]]:
    """Metrics by training step, as far as they are written."""
    if not logged.is_file():
        return []
    lines = [json.loads(line) for line in logged.read_text().splitlines() if line.endswith("}")]
    return [line["data"] for line in lines if line["step"] > 0]


def report(metrics: Sequence[dict[str, Any]]) -> None:
    columns = {
        "reward": "critic/score/mean",
        "turns": "mcp/turns",
        "tool errors": "mcp/tool_error_rate",
        "failed": "mcp/failed_share",
        "engine vs trainer": "training/rollout_probs_diff_mean",
        "seconds": "timing_s/step",
    }
    table = Table("step", *columns, title="GRPO on a random model: the path, not the result")
    for number, step in enumerate(metrics, 1):
        table.add_row(str(number), *(f"{step[key]:.3g}" for key in columns.values()))
    console.print(table)


if __name__ == "__main__":
    main()
