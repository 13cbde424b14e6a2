"""The runs of the experiment: each trains a setting with a seed, and starts and resumes alone."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from lab.demo import resuming
from lab.demo.display import bar, console
from lab.demo.processes import verl_training
from lab.pretrained.prepare import World, warmed_up
from lab.pretrained.settings import BFLOAT16, EVERY, HELD_OUT_TEMPERATURE, TURN_TOKENS, Setting

TIMEOUT_S = 6 * 3600.0
"""Longest duration of one start of verl; a run goes on where it was cut."""
LINE_EVERY_S = 60.0
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run, in a directory of its own below `home`."""

    home: Path
    world: World
    model: Path
    """Before the warm-up."""
    label: str
    """The setting's name."""
    setting: Setting
    seed: int
    is_validated: bool = False
    """Evaluated on the test split for choosing, not on the held-out one."""
    is_control: bool = False
    """Trains with a learning rate of zero."""

    @property
    def name(self) -> str:
        validated = "-validation" if self.is_validated else ""
        return f"{self.label}-seed{self.seed}{validated}{'-control' if self.is_control else ''}"

    @property
    def environment(self) -> str:
        """Whose test split is evaluated."""
        return f"{self.world.name}_validation" if self.is_validated else self.world.name

    @property
    def directory(self) -> Path:
        return self.home / self.name

    @property
    def done(self) -> Path:
        """The file that says that the run is complete."""
        return self.directory / "done.json"

    @property
    def is_trained(self) -> bool:
        """Whether the last step has been evaluated."""
        return resuming.was_evaluated(resuming.logged(self.directory).get(self.setting.steps, {}))

    def overrides(self, warmed: Path) -> dict[str, object]:
        """verl's overrides of the next start.

        Args:
            warmed: the directory of the warmed-up model.
        """
        own, home = self.setting, self.home.absolute()
        # Of all rows of a step, as many at a time as the engine decodes together.
        sequences = own.rows * own.samples
        return resuming.overrides(self.directory.absolute(), every=EVERY) | {
            "engine": "cpu_135m",
            # Sampled log-probabilities stand for the trainer's, to which they are close in bfloat16 too.
            "recipe": "warm_start",
            "data.train_files": home / "train.parquet",
            "data.val_files": home / f"{self.environment}.parquet",
            "data.seed": self.seed,
            "data.train_batch_size": own.rows,
            # All sequences are padded to this. Prompts have at most 139 ids, and two turns with a result 112.
            "data.max_prompt_length": 144,
            "data.max_response_length": 112,
            "actor_rollout_ref.model.path": warmed.absolute(),
            f"{_ACTOR}.optim.lr": 0.0 if self.is_control else own.learning_rate,
            f"{_ACTOR}.optim.weight_decay": 0.0,
            f"{_ACTOR}.optim.override_optimizer_config": f"{{eps:{own.adam_eps}}}",
            f"{_ACTOR}.use_kl_loss": own.kl > 0,
            f"{_ACTOR}.kl_loss_coef": own.kl,
            f"{_ACTOR}.fsdp_config.mixed_precision.param_dtype": "bf16" if BFLOAT16 else "fp32",
            f"{_ROLLOUT}.dtype": "bfloat16" if BFLOAT16 else "float32",
            f"{_ACTOR}.ppo_micro_batch_size_per_gpu": 6,
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 6,
            f"{_ROLLOUT}.n": own.samples,
            f"{_ROLLOUT}.max_num_seqs": sequences,
            f"{_ROLLOUT}.temperature": own.temperature,
            f"{_ROLLOUT}.val_kwargs.do_sample": True,
            f"{_ROLLOUT}.val_kwargs.temperature": HELD_OUT_TEMPERATURE,
            f"{_ROLLOUT}.multi_turn.tool_config_path": home / "tool_config.yaml",
            f"{_ROLLOUT}.custom.mcp.seed": self.seed,
            f"{_ROLLOUT}.custom.mcp.environments_dir": self.world.environments,
            f"++{_ROLLOUT}.custom.mcp.environment.limits.tokens_per_turn": TURN_TOKENS,
            f"{_ROLLOUT}.custom.mcp.record_trained": True,
            "trainer.total_training_steps": own.steps,
        }


def train(run: Run) -> None:
    """Warm up and train, from where an earlier call was cut.

    Raises:
        SystemExit: verl ended before the last step was evaluated, or after `TIMEOUT_S`; its output is in the run's
            directory.
    """
    if run.done.is_file():
        return
    console.rule(run.name)
    warmed = warmed_up(run.world, run.home, run.model, run.setting, run.seed)
    run.directory.mkdir(parents=True, exist_ok=True)
    if not run.is_trained:
        arguments = [f"{key}={value}" for key, value in run.overrides(warmed).items()]
        log = run.directory / f"verl-{len(list(run.directory.glob('verl-*.log'))):03d}.log"
        with verl_training(arguments, log) as process:
            _follow(process, run)
        if not run.is_trained:
            raise SystemExit(f"error: {run.name} ended before its last step; verl's output is in {log}")
    run.done.write_text(json.dumps({"seed": run.seed, "steps": run.setting.steps}))


def _follow(process: subprocess.Popen[bytes], run: Run) -> None:
    """Show steps and rewards as verl logs them until it ends, or `TIMEOUT_S` has passed. Without a terminal a line is
    printed at most every `LINE_EVERY_S`."""
    deadline, next_line = time.monotonic() + TIMEOUT_S, 0.0
    steps = run.setting.steps
    with bar("Ray, verl and the model start", steps) as (progress, task):
        while process.poll() is None and time.monotonic() < deadline:
            taken = {step: each for step, each in resuming.logged(run.directory).items() if "critic/score/mean" in each}
            if taken:
                last = taken[max(taken)]
                text = f"GRPO, reward {last['critic/score/mean']:.2f}, {last['timing_s/step']:.0f} s a step"
                progress.update(task, completed=max(taken), description=text)
                if not console.is_terminal and time.monotonic() >= next_line:
                    console.print(f"{run.name}: step {max(taken)} of {steps}, {text}", markup=False)
                    next_line = time.monotonic() + LINE_EVERY_S
            time.sleep(1.0)
