"""The runs of the experiment. Each trains until it has sampled its budget of tokens, and starts and resumes alone."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lab.demo import resuming
from lab.demo.display import console
from lab.demo.grpo import TEMPERATURE
from lab.demo.processes import verl_training
from lab.strategies.long_days import INSTRUCTION, KEEP_TURNS
from lab.worlds import WORLDS

_MCP = "actor_rollout_ref.rollout.custom.mcp"
_ENVIRONMENT = f"++{_MCP}.environment"
COMPARISONS: dict[str, tuple[str, ...]] = {
    "void_masked": (f"{_ENVIRONMENT}.filters.void.action=mask",),
    "thinking_masked": (f"{_ENVIRONMENT}.thinking.loss=mask",),
    "drop_previous": (f"{_ENVIRONMENT}.thinking.context=drop_previous",),
    "tree_grpo": (f"{_ENVIRONMENT}.strategy.use=tree", "algorithm.adv_estimator=tree_grpo"),
    "step_grpo": ("algorithm.adv_estimator=step_grpo",),
}
"""Further runs, seed 0 alone, by what they change about a chain with GRPO and the reward at the end."""
_FEWER = "chain_n5"
"""Chains of which a step samples about as many tokens as one of trees."""
_SINGLE_TOKENS = 100_000
"""Most sampled tokens of a run of single turns: its update is on nine times as many."""
_SKILLED_TOKENS = 80_000
"""Most sampled tokens of a run from a skilled model."""
AT_TOKENS, PART_TOKENS, TURN_TOKENS = 610, 340, 48
"""Of the long days: a context with its opening prompt of about 234 tokens, of which one that is summed up may have so
many when a turn begins; one that is not, without that prompt; and a turn. A day has 1,600 tokens."""
_LONG_SINGLE = "long_single_turn"
_COMPACT = (
    f"{_ENVIRONMENT}.strategy.use=compact",
    f"{_ENVIRONMENT}.strategy.compact.at_tokens={AT_TOKENS}",
    f"{_ENVIRONMENT}.strategy.compact.keep_turns={KEEP_TURNS}",
    f"{_ENVIRONMENT}.strategy.compact.summary_tokens=32",
    f"{_ENVIRONMENT}.strategy.compact.instruction='{INSTRUCTION}'",
    # With room for the request, a summary, and a turn that begins below `at_tokens`.
    f"data.max_response_length={AT_TOKENS + 160}",
)
LONG_RUNS: dict[str, tuple[str, ...]] = {
    "compact": _COMPACT,
    "compact_masked": (*_COMPACT, f"{_ENVIRONMENT}.strategy.compact.summary_loss=mask"),
    "cut": (*_COMPACT, f"{_ENVIRONMENT}.strategy.compact.summary_tokens=0"),
    _LONG_SINGLE: (f"{_ENVIRONMENT}.strategy.single_turn.history_tokens={PART_TOKENS - TURN_TOKENS}",),
    "long_drop_previous": (f"{_ENVIRONMENT}.thinking.context=drop_previous",),
}
"""Runs on the long days, by what they change."""
SHORT_SEEDS, OTHER_SEEDS = 5, 3
"""Seeds of chains and trees; of single turns, of days with second tries and of the long days."""
RETRY = "depot:slice=retry"
"""Days in which states are met again: a treatment that does not fit has no effect."""
EVERY = 5
"""Steps between two evaluations on the held-out tasks, at which checkpoints are written as well."""
LEAVES = 8
TIMEOUT_S = 7200.0
"""Longest duration of one start of verl; a run goes on where it was cut."""


def short_runs(home: Path, budget: int) -> list[Run]:
    """Chains and trees. A seed is that of the initialisation, the warm-up, the order of rows and the sampling."""
    runs: list[Run] = []
    for seed in range(SHORT_SEEDS):
        begin = partial(Run, home=home / f"short-{seed}", seed=seed, budget=budget)
        runs += [
            begin(strategy="chain"),
            begin(strategy="chain", label=_FEWER, options=("actor_rollout_ref.rollout.n=5",)),
            begin(strategy="tree"),
        ]
        if seed < OTHER_SEEDS:
            # With the chains' rate, and divided by the deviation, one of three seeds collapsed.
            gentle = {"learning_rate": 1e-3, "options": ("algorithm.norm_adv_by_std_in_grpo=False",)}
            runs.append(begin(strategy="single_turn", budget=min(budget, _SINGLE_TOKENS), **gentle))
    return [*runs, replace(runs[0], learning_rate=0.0)]


def compared(home: Path, budget: int) -> list[Run]:
    """The runs of `COMPARISONS`."""
    begin = partial(Run, home=home / "short-0", budget=budget, strategy="chain")
    return [begin(label=label, options=options) for label, options in COMPARISONS.items()]


def retry_runs(home: Path, budget: int) -> list[Run]:
    """`grpo` and `step_grpo` on `RETRY`, from the models of `short_runs`, which have not seen it."""
    of_both = (f"{_ENVIRONMENT}.reward.weights={{score:0,turns:1}}", "algorithm.gamma=0.95")
    return [
        Run(
            home=home / f"short-{seed}",
            rows="retry",
            strategy="chain",
            seed=seed,
            budget=budget,
            label=f"retry_{estimator}",
            options=(*of_both, f"algorithm.adv_estimator={estimator}"),
        )
        for seed in range(OTHER_SEEDS)
        for estimator in ("grpo", "step_grpo")
    ]


def skilled_runs(home: Path, budget: int) -> list[Run]:
    """Single turns from a model that decides well: what a further update of it breaks."""
    undivided = ("algorithm.norm_adv_by_std_in_grpo=False",)
    arms = {"skilled": (2e-3, ()), "skilled_undivided": (2e-3, undivided), "skilled_half": (1e-3, ())}
    return [
        Run(
            home=home / f"skilled-{seed}",
            strategy="single_turn",
            seed=seed,
            budget=min(budget, _SKILLED_TOKENS),
            label=label,
            learning_rate=rate,
            options=options,
        )
        for seed in range(OTHER_SEEDS)
        for label, (rate, options) in arms.items()
    ]


def long_runs(home: Path, budget: int) -> list[Run]:
    """The runs on the long days, each seed with a control."""
    of_all = (f"data.max_response_length={PART_TOKENS}", "data.max_prompt_length=1024")
    return [
        Run(
            home=home / f"long-{seed}",
            strategy="single_turn" if label == _LONG_SINGLE else "chain",
            seed=seed,
            budget=min(budget, _SINGLE_TOKENS) if label == _LONG_SINGLE else budget,
            label=label,
            options=(*of_all, *options),
            learning_rate=rate,
        )
        for seed in range(OTHER_SEEDS)
        for rate in (2e-3, 0.0)
        for label, options in LONG_RUNS.items()
        if rate or label == "compact"
    ]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run, in a directory of its own below `home`."""

    home: Path
    rows: str = ""
    """The directory below `home` of rows and lock, where they are not in `home` itself."""
    strategy: str
    seed: int = 0
    learning_rate: float = 2e-3
    budget: int
    """Sampled tokens after which it ends, at the next evaluation."""
    options: tuple[str, ...] = ()
    """Further overrides, such as those of the comparisons in docs/strategies.md."""
    label: str = ""

    @property
    def name(self) -> str:
        control = "-control" if self.learning_rate == 0 else ""
        return f"{self.label or self.strategy}-{self.seed}{control}"

    @property
    def directory(self) -> Path:
        return self.home / self.name

    @property
    def is_done(self) -> bool:
        """Whether it has spent its budget; a larger one than the last start's is still to be spent."""
        done = self.directory / "done.json"
        return done.is_file() and json.loads(done.read_text())["budget"] >= self.budget

    def metrics(self) -> dict[int, dict[str, Any]]:
        """verl's metrics by step."""
        return resuming.logged(self.directory)

    def evaluated_at(self) -> int | None:
        """The first step with an evaluation at which the budget was spent; None while it is not."""
        spent = 0.0
        for step, metrics in sorted(self.metrics().items()):
            spent += metrics.get("mcp/sampled_tokens", 0.0)
            if spent >= self.budget and step % EVERY == 0 and resuming.was_evaluated(metrics):
                return step
        return None

    def overrides(self) -> dict[str, object]:
        """verl's overrides of the next start."""
        home = self.home.absolute()
        rows = home / self.rows
        return resuming.overrides(self.directory.absolute(), every=EVERY) | {
            "engine": "cpu",
            # As in the demo; the rate is constant, since strategies differ in steps for a budget.
            "recipe": "warm_start",
            "data.train_files": rows / "train.parquet",
            "data.val_files": rows / "test.parquet",
            "data.seed": self.seed,
            "actor_rollout_ref.rollout.custom.mcp.seed": self.seed,
            "data.train_batch_size": 6,
            "data.max_prompt_length": 512,
            "data.max_response_length": 1024,
            "actor_rollout_ref.model.path": home / "model",
            "actor_rollout_ref.actor.optim.lr": self.learning_rate,
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 12,
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 12,
            "actor_rollout_ref.rollout.n": LEAVES,
            "actor_rollout_ref.rollout.max_num_seqs": 60,
            "actor_rollout_ref.rollout.temperature": TEMPERATURE,
            "actor_rollout_ref.rollout.val_kwargs.do_sample": True,
            "actor_rollout_ref.rollout.val_kwargs.temperature": TEMPERATURE,
            f"{_MCP}.environments_dir": WORLDS,
            f"{_ENVIRONMENT}.limits.tokens_per_turn": 48,
            f"{_ENVIRONMENT}.strategy.use": self.strategy,
            **({f"{_ENVIRONMENT}.strategy.single_turn.history_tokens": 512} if self.strategy == "single_turn" else {}),
            "actor_rollout_ref.rollout.multi_turn.tool_config_path": rows / "tool_config.yaml",
            "trainer.total_training_steps": 1000,
        }


def train(run: Run) -> None:
    """Start or resume a run, and end it where its budget is spent.

    Raises:
        SystemExit: verl ended by itself, or after `TIMEOUT_S`; its output is in the run's directory.
    """
    if run.is_done:
        return
    run.directory.mkdir(parents=True, exist_ok=True)
    console.rule(run.name)
    arguments = [f"{key}={value}" for key, value in run.overrides().items()] + list(run.options)
    log = run.directory / f"verl-{len(list(run.directory.glob('verl-*.log'))):03d}.log"
    with verl_training(arguments, log) as process:
        step = _follow(process, run)
    if step is None:
        raise SystemExit(f"error: {run.name} has not spent its budget; verl's output is in {log}")
    (run.directory / "done.json").write_text(json.dumps({"step": step, "budget": run.budget}))


def _follow(process: subprocess.Popen[bytes], run: Run) -> int | None:
    """Wait until the budget is spent, and return that step; None where verl ended before."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if (step := run.evaluated_at()) is not None:
            return step
        if process.poll() is not None:
            return run.evaluated_at()
        time.sleep(2.0)
    return None
