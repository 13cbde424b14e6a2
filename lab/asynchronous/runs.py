"""The runs of the experiment: one for each mode in simulated time, and one for each staleness, correction and seed."""

from __future__ import annotations

import json
import os
import shutil
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lab.asynchronous.queue_model import Played
from lab.asynchronous.slow_engine import generation_s
from lab.asynchronous.slow_tools import tool_s
from lab.demo.display import console
from lab.demo.experiment import STATE, collect, prepare_model
from lab.demo.grpo import logged_steps, train
from lab.worlds.copies import raw_environment
from mcp_rollout.rollout.trace.store import read_traces
from mcp_rollout.rollout.trace.trained import read_trained

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (0, 1, 2)
STEPS, SPEED_STEPS = 30, 12
"""Of each run: fixed before the first one."""
PROMPTS, SAMPLES = 16, 4
BATCH = 72
"""Trajectories of a step of the demo's training."""
LEARNING_RATE = 1.5e-3
_SAMPLER = "trainer.v1.sampler"
_ROLLOUT = "actor_rollout_ref.rollout"
_SEPARATE: dict[str, Any] = {
    f"{_ROLLOUT}.nnodes": 1,
    f"{_ROLLOUT}.n_gpus_per_node": 1,
    f"{_ROLLOUT}.checkpoint_engine.backend": "gloo",
    f"{_ROLLOUT}.checkpoint_engine.custom_backend_module": "mcp_rollout.rollout.verl_cpu.gloo_weights",
    "ray_kwargs.ray_init.num_gpus": 2,
    "ray_kwargs.ray_init.num_cpus": 14,
}


@dataclass(frozen=True, kw_only=True)
class Run:
    home: Path
    """Of the whole experiment."""
    mode: str
    staleness: int = 0
    corrected: bool = True
    seed: int = 0
    scale: float = 0.0
    """Of simulated time; 0 for a run that measures rewards, at this machine's own speed."""
    steps: int = STEPS
    more: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def name(self) -> str:
        stale = "" if self.mode == "sync" else f"-{self.staleness}"
        correction = "" if self.corrected else "-uncorrected"
        kind = f"speed-x{self.scale:g}" if self.scale else "reward"
        return f"{kind}-{self.mode}{stale}{correction}-seed{self.seed}"

    @property
    def directory(self) -> Path:
        return self.home / self.name

    @property
    def result(self) -> dict[str, Any] | None:
        file = self.directory / "result.json"
        return json.loads(file.read_text()) if file.is_file() else None


def speed_runs(home: Path, *, scale: float, steps: int = SPEED_STEPS, **more: Any) -> list[Run]:
    arms = [("sync", 0), ("colocate", 1), ("separate", 1), ("separate", 2), ("separate", 4)]
    sizes = {
        "data.train_batch_size": PROMPTS,
        f"{_ROLLOUT}.n": SAMPLES,
        # Trainer and engine compute at the same time.
        "ray_kwargs.ray_init.runtime_env.env_vars.OMP_NUM_THREADS": "'1'",
        **more,
    }
    return [
        Run(home=home, mode=mode, staleness=staleness, scale=scale, steps=steps, more=sizes) for mode, staleness in arms
    ]


def reward_runs(home: Path) -> list[Run]:
    arms = [("sync", 0, True), *[("colocate", stale, corrected) for stale in (1, 4) for corrected in (True, False)]]
    return [
        Run(home=home, mode=mode, staleness=staleness, corrected=corrected, seed=seed)
        for seed in SEEDS
        for mode, staleness, corrected in arms
    ]


def finish(run: Run) -> None:
    """Train, unless it is done. A run that verl ends with an error begins once more, and then is left out."""
    for _ in range(2):
        if run.result is not None:
            return
        shutil.rmtree(run.directory, ignore_errors=True)
        run.directory.mkdir(parents=True)
        for name in ("model", "train.parquet", "test.parquet", "tool_config.yaml"):
            (run.directory / name).symlink_to(_prepared(run.home, run.seed) / name)
        console.rule(run.name)
        os.environ |= {"PYTHONPATH": str(ROOT), "GENERATION_S": str(run.scale)}
        try:
            train(
                run.directory, seed=run.seed, steps=run.steps, learning_rate=LEARNING_RATE, more=dict(_overrides(run))
            )
        except SystemExit as error:
            if not isinstance(error.code, str):  # a signal to this program
                raise
            console.print(error.code, markup=False)
            continue
        found = _speed(run) if run.scale else _reward(run)
        (run.directory / "result.json").write_text(json.dumps(found))


def _prepared(home: Path, seed: int) -> Path:
    """A warmed-up model with rows and lock, the demo's, made at the first use of a seed."""
    made = home.absolute() / f"prepared-seed{seed}"
    if not (made / "done").exists():
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        collect(made, STATE)
        prepare_model(made, seed, STATE.warm_up)
        (made / "done").touch()
    return made


def _overrides(run: Run) -> Iterator[tuple[str, Any]]:
    yield "algorithm.rollout_correction.bypass_mode", False
    yield f"{_ROLLOUT}.engine_kwargs.transformers_cpu.engine_log", run.directory.absolute() / "engine.jsonl"
    if run.mode != "sync":
        yield "recipe", "[warm_start,async]"
        yield "trainer.v1.trainer_mode", f"mcp_{run.mode}_async"
        yield f"trainer.v1.{run.mode}_async.num_warmup_batches", run.staleness
        yield f"{_SAMPLER}.max_off_policy_threshold", run.staleness + 1
    # All trajectories in flight have a world and a place in the engine's batch: those that wait for one sample with
    # later weights, and nothing is stale.
    in_flight = (run.staleness + 1) * (PROMPTS * SAMPLES if run.scale else BATCH)
    yield f"++{_ROLLOUT}.custom.mcp.environment.max_sessions", in_flight
    yield f"{_ROLLOUT}.max_num_seqs", in_flight
    if not run.corrected:
        yield "algorithm.rollout_correction.rollout_is", "null"
    if run.mode == "separate":
        yield from _SEPARATE.items()
    if run.scale:
        environments = run.directory / "environments"
        environments.mkdir()
        slow = raw_environment("shop") | {"agent": {"use": "lab.asynchronous.slow_tools:SlowTools"}}
        (environments / "shop.yaml").write_text(yaml.safe_dump(slow))
        modules = (
            "mcp_rollout.rollout.verl_cpu.accelerator,mcp_rollout.rollout.verl.trainer,lab.asynchronous.slow_engine"
        )
        yield f"{_ROLLOUT}.custom.mcp.environments_dir", environments.absolute()
        yield "ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES", f"'{modules}'"
        yield "trainer.val_before_train", False
        yield "trainer.test_freq", -1
    yield from run.more.items()


def _speed(run: Run) -> dict[str, Any]:
    """Idle share of the engine and trained tokens a minute, without the first two steps, in simulated minutes."""
    steps = logged_steps(run.directory)
    seconds = [step["timing_s/step"] for step in steps][2:]
    busy = [json.loads(line) for line in (run.directory / "engine.busy").read_text().splitlines()]
    began = max(end for _, end in busy) - sum(seconds)
    generated = sum(max(0.0, end - max(begin, began)) for begin, end in busy)
    trained = [each for each in read_trained(run.directory / "train" / "traces") if each.step > 2 and not each.dropped]
    minutes = sum(seconds) / 60 / run.scale
    simulated = run.scale * sum(each.generations_s for each in played(run))
    return {
        "idle": 1 - generated / (PROMPTS * SAMPLES * sum(seconds)),
        "tokens_per_minute": sum(sum(each.mask) for each in trained) / minutes,
        "train_s": statistics.fmean(step["timing_s/step"] - step["timing_s/gen"] for step in steps[2:]) / run.scale,
        "slower": sum(end - begin for begin, end in busy) / simulated,
    }


def played(run: Run) -> list[Played]:
    """The trajectories of a run of simulated time, in the engine's time without any overhead."""
    return [
        Played(
            generations_s=sum(generation_s(turn.seeds[0], turn.sampled) for turn in trace.turns),
            tools_s=sum(tool_s(trace.id, number) for number, turn in enumerate(trace.turns) if turn.tools),
            tokens=sum(sum(segment.loss_mask) for segment in trace.segments),
        )
        for trace in read_traces(run.directory / "train" / "traces")
        if not trace.is_withdrawn
    ]


def _reward(run: Run) -> dict[str, Any]:
    validated = [trace for trace in read_traces(run.directory / "train" / "traces") if trace.origin.validate_]
    last = max(trace.origin.step for trace in validated)
    scores = [trace.reward.score for trace in validated if trace.origin.step == last and trace.reward]
    return {
        "held_out": statistics.fmean(scores),
        "curve": [step["critic/score/mean"] for step in logged_steps(run.directory)],
        "stale": [step["training/off_policy/trajectory_staleness_worst/mean"] for step in logged_steps(run.directory)],
    }
