"""Runs that verl accepts and that must not be trained, as tables, which `rollout.verl.preflight` applies."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from verl.plugin.platform import get_platform
from verl.trainer.ppo.core_algos import AdvantageEstimator

from mcp_rollout.rollout.environment.config import INCLUDED_CONFIGS
from mcp_rollout.rollout.environment.sections import BranchAt
from mcp_rollout.rollout.loop.compaction import check_compaction
from mcp_rollout.rollout.training.refusals import Refusal, refuse
from mcp_rollout.rollout.training.samples import STRATEGY_KEY
from mcp_rollout.rollout.verl.modules import MODULES_KEY, external_modules, hidden_modules, registered_estimators
from mcp_rollout.rollout.verl.refused_run import (
    CORRECTION_KEY,
    ESTIMATOR_KEY,
    LOSS_KEY,
    MODE_KEY,
    SAMPLER_KEY,
    WITHOUT_GROUPS,
    Run,
)
from mcp_rollout.rollout.verl.settings import (
    ESTIMATORS,
    KEY,
    TRAINER_MODE,
    Settings,
    groups_per_update,
    limits_for,
)

VERL = "verl 0.9.1"
_ROLLOUT, _ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
_OUR_TRAINER = "mcp_rollout.rollout.verl.trainer"
_LOCKED = ("sglang", "vllm")
"""Engines with a lock in constraints/, which are also the names of their modules."""
_LOCKS = INCLUDED_CONFIGS.with_name("constraints")
"""A link to constraints/, whose locks a wheel has too."""
_VOTING = ("grpo", *ESTIMATORS)
"""Estimators in which each trajectory has one vote, however many samples it has."""
_OF_RATIOS = ("gspo", "cispo")
"""Losses that differ from the plain policy gradient by what they make of a ratio other than 1."""

GIVEN: tuple[Refusal[Run], ...] = (
    Refusal(
        key="data.train_files",
        when=lambda run: not run["data.train_files"],
        problem="is not given",
        remedy="name a file that `mcp-rollout data` wrote",
    ),
    Refusal(
        key="actor_rollout_ref.model.path",
        when=lambda run: not run["actor_rollout_ref.model.path"],
        problem="is not given",
        remedy="name a model directory",
    ),
)
"""Without these the other conditions cannot be looked at."""

OF_THE_RUN: tuple[Refusal[Run], ...] = (
    Refusal(
        key=f"{_ROLLOUT}.custom",
        when=lambda run: Settings.model_fields.keys() & set(run.config.actor_rollout_ref.rollout.custom),
        problem="has settings of ours, which are read below mcp only",
        remedy=f"write {KEY}.NAME",
    ),
    Refusal(
        key=f"{KEY}.seed",
        when=lambda run: (
            run.settings.seed
            and not (run.settings.sampling_seed_key and run.is_v1)
            and not run[f"{_ROLLOUT}.full_determinism"]
        ),
        problem="is {value}, and requests have no seed",
        remedy=f"set {KEY}.sampling_seed_key to the engine's parameter (and trainer.use_v1=True), or leave the seed 0",
    ),
    Refusal(
        key=MODULES_KEY,
        when=lambda run: run.is_ours and _OUR_TRAINER not in external_modules(run.config),
        problem=f"does not name {_OUR_TRAINER}, so verl's trainer process does not know our trainer modes",
        remedy=f"put it before yours, or set {MODE_KEY}=sync",
    ),
    Refusal(
        key=MODULES_KEY,
        when=lambda run: hidden_modules(run.config),
        problem="hides modules of your environment's VERL_USE_EXTERNAL_MODULES from verl's processes",
        remedy="name them here too",
        seen=VERL,
    ),
    Refusal(
        key=MODULES_KEY,
        when=lambda run: run["trainer.device"] == "cpu" and get_platform().device_name != "cpu",
        problem="names no module that makes a CPU verl's platform, and trainer.device is cpu",
        remedy="begin it with the modules of configs/engine/cpu.yaml",
        seen=VERL,
    ),
    Refusal(
        key=f"{SAMPLER_KEY}.custom_sampler.name",
        when=lambda run: (
            run.has_our_sampler
            and run[f"{SAMPLER_KEY}.custom_sampler.name"]
            != ("MCPReplayBufferAsync" if run.is_async else "MCPReplayBuffer")
        ),
        problem="is {value}, which samples as another trainer mode does: old samples and withdrawn groups would stay",
        remedy="MCPReplayBufferAsync in the asynchronous modes, MCPReplayBuffer in the others",
    ),
    Refusal(
        key=f"{SAMPLER_KEY}.sync_refill_failed_groups",
        when=lambda run: run.has_our_sampler and run[f"{SAMPLER_KEY}.sync_refill_failed_groups"],
        problem="is True, and our samplers replace withdrawn groups in the asynchronous modes only",
        remedy="leave it False",
    ),
    Refusal(
        key=f"{SAMPLER_KEY}.max_off_policy_threshold",
        when=lambda run: (
            run.is_async
            and run[f"{SAMPLER_KEY}.max_off_policy_strategy"] == "wait"
            and (most := run.config.trainer.v1.sampler.max_off_policy_threshold) is not None
            and most < run.batches_in_flight + 1
        ),
        problem="is {value}, and verl trains on older prompts: it does not wait for those that have ended",
        remedy="make it num_warmup_batches + 1 at least",
        seen=VERL,
    ),
    Refusal(
        key=f"{_ROLLOUT}.calculate_log_probs",
        when=lambda run: run.is_v1 and run.corrects and not run[f"{_ROLLOUT}.calculate_log_probs"],
        problem="is {value}, and verl leaves algorithm.rollout_correction out without them",
        remedy="set it to True",
        seen=VERL,
    ),
    Refusal(
        key=f"{CORRECTION_KEY}.rollout_is",
        when=lambda run: run.is_async and not run.corrects,
        problem="tokens that older weights sampled are trained on as if the newest had sampled them",
        remedy="set it to token, as recipe=async does",
        seen=VERL,
        only_warns=lambda _: True,
    ),
    Refusal(
        key=f"{CORRECTION_KEY}.bypass_mode",
        when=lambda run: run.trains and run.bypasses and run[LOSS_KEY] not in ("vanilla", "bypass_mode"),
        problem="is {value} beside the loss {loss}, which verl's v0 trainer then replaces by its own; under v1 its "
        "ratio is to the engine's probabilities, so that its clip acts on how engine and trainer round",
        remedy=f"leave it False, or set {LOSS_KEY}=vanilla",
        seen=VERL,
    ),
    Refusal(
        key=f"{CORRECTION_KEY}.bypass_mode",
        when=lambda run: (
            run.trains
            and run.is_v1
            and run.bypasses
            and run[LOSS_KEY] == "vanilla"
            and (run[f"{CORRECTION_KEY}.rollout_rs"] or run[f"{CORRECTION_KEY}.loss_type"] != "ppo_clip")
        ),
        problem="is {value}, and verl's v1 trainer then leaves out rollout_rs and loss_type",
        remedy="leave it False to use rollout_rs, or leave both as they are",
        seen=VERL,
    ),
    Refusal(
        key=f"{_ACTOR}.ppo_mini_batch_size",
        when=lambda run: run.trains and run[LOSS_KEY] in _OF_RATIOS and run.updates_once,
        problem="is {value}, which is one update a step: the ratio of {loss} is 1 throughout, and its clip never acts",
        remedy="a quarter of data.train_batch_size, for example; or set ppo_epochs to 2 or more",
        only_warns=lambda _: True,
    ),
    Refusal(
        key=f"{_ROLLOUT}.top_p",
        when=lambda run: run[f"{_ROLLOUT}.top_p"] not in (1.0, 0) or run[f"{_ROLLOUT}.top_k"] not in (-1, 0),
        problem="the engine renormalises the probabilities of the tokens that top_p and top_k leave, and the trainer "
        "does not: trained log-probabilities differ from sampled ones",
        remedy="set top_p=1.0 and top_k=-1 for training",
        seen=VERL,
        only_warns=lambda _: True,
    ),
    Refusal(
        key=f"{_ROLLOUT}.temperature",
        when=lambda run: run.trains and not run.config.actor_rollout_ref.rollout.temperature,
        problem="is {value}, and the trainer divides by it",
        remedy="for example 1.0",
        seen=VERL,
    ),
    Refusal(
        key=f"{_ROLLOUT}.n",
        when=lambda run: (
            run.trains
            and run.has_groups
            and run[f"{_ROLLOUT}.n"] == 1
            and run[ESTIMATOR_KEY] in [*AdvantageEstimator, *ESTIMATORS]
        ),
        problem="is 1, and {estimator} compares the trajectories of a group",
        remedy=f"set it to 2 or more, or {ESTIMATOR_KEY} to one of {', '.join(WITHOUT_GROUPS)}",
        seen=VERL,
    ),
    Refusal(
        key=ESTIMATOR_KEY,
        when=lambda run: run.has_groups and not run.is_v1,
        problem="{value} compares the trajectories of a group, and under v0 a withdrawn one has a reward of 0",
        remedy=f"set trainer.use_v1=True, or one of {', '.join(WITHOUT_GROUPS)}",
    ),
    Refusal(
        key=ESTIMATOR_KEY,
        when=lambda run: run[ESTIMATOR_KEY] in ESTIMATORS and not run.is_ours,
        problem="{value} needs columns that verl's own trainers do not read",
        remedy=f"set {MODE_KEY}={TRAINER_MODE}, or use grpo",
    ),
    Refusal(
        key=ESTIMATOR_KEY,
        when=lambda run: run.trains and run[ESTIMATOR_KEY] == "gae" and not run["critic.enable"],
        problem="is gae, which needs a critic",
        remedy="set critic.enable=True",
        seen=VERL,
    ),
    Refusal(
        key=f"{KEY}.record_trained",
        when=lambda run: run.settings.record_trained and not run.is_ours,
        problem="is True, and verl's own trainers write no record of what they computed on each token",
        remedy=f"set {MODE_KEY}={TRAINER_MODE}, or leave it False",
    ),
    Refusal(
        key=f"{_ACTOR}.ppo_max_token_len_per_gpu",
        when=lambda run: (
            run.trains
            and (actor := run.config.actor_rollout_ref.actor).use_dynamic_bsz
            and actor.ppo_max_token_len_per_gpu * actor.ulysses_sequence_parallel_size
            < run.config.data.max_prompt_length + run.config.data.max_response_length
        ),
        problem="is {value}, and a longer trajectory ends the run when the first one comes",
        remedy="data.max_prompt_length and data.max_response_length together, or more",
        seen=VERL,
    ),
)

OF_THE_MACHINE: tuple[Refusal[Run], ...] = (
    Refusal(
        key=f"{_ROLLOUT}.name",
        when=lambda run: (
            (name := str(run[f"{_ROLLOUT}.name"])) in _LOCKED and not run.joins_a_cluster and find_spec(name) is None
        ),
        problem="{value} is not installed here",
        remedy=f"python -m pip install --no-deps --require-hashes -r {_LOCKS}/{{value}}_gpu.txt; "
        "without a GPU, engine=cpu, or `make sglang` in a checkout",
    ),
    Refusal(
        key="trainer.n_gpus_per_node",
        when=lambda run: run["trainer.device"] == "cuda" and not run.joins_a_cluster and not torch.cuda.is_available(),
        problem="is {value}, and no GPU is available",
        remedy="start it where they are, or join a cluster (RAY_ADDRESS); engine=cpu needs none",
    ),
)

_SEVERAL = "several samples of a trajectory, and more samples would mean more optimizer steps of a batch"

OF_AN_ENVIRONMENT: tuple[Refusal[Run], ...] = (
    *(
        Refusal[Run](
            key=key,
            when=lambda run, key=key: not run.is_v1 and key in run.several,
            problem="makes several training samples of one trajectory, and verl's v0 trainer takes one",
            remedy="set trainer.use_v1=True, or keep one context",
        )
        for key in (STRATEGY_KEY, "thinking.context", "agent.use")
    ),
    Refusal(
        key=STRATEGY_KEY,
        when=lambda run: not run.is_v1 and run.environment.as_chain is not run.environment,
        problem="verl's v0 trainer rolls out chains of {environment}",
        remedy="set trainer.use_v1=True",
        only_warns=lambda _: True,
    ),
    Refusal(
        key="strategy.tree.branch_at",
        when=lambda run: (
            run.grows_a_tree
            and run.environment.strategy.tree.branch_at is BranchAt.ENTROPY
            and not run[f"{_ROLLOUT}.calculate_log_probs"]
        ),
        problem=f"entropy needs the engine's log-probabilities, and {_ROLLOUT}.calculate_log_probs is off",
        remedy="turn it on, or branch at uniform",
    ),
    Refusal(
        key="strategy.tree.roots",
        when=lambda run: (
            run.grows_a_tree and run.environment.strategy.tree.roots >= run.config.actor_rollout_ref.rollout.n
        ),
        problem=f"is not below the leaves of a group ({_ROLLOUT}.n), so none would branch",
        remedy="make it smaller than rollout.n, or use chains",
    ),
    Refusal(
        key=MODE_KEY,
        when=lambda run: run.is_v1 and run.several and not run.is_ours,
        problem=f"{{environment}} makes {_SEVERAL}",
        remedy=f"set it to {TRAINER_MODE} or another of ours, which take ppo_epochs steps on all samples",
        only_warns=lambda run: run.may_be_several,
    ),
    Refusal(
        key=f"{_ACTOR}.ppo_mini_batch_size",
        when=lambda run: (
            run.is_v1
            and run.several
            and run.config.actor_rollout_ref.actor.ppo_mini_batch_size < groups_per_update(run.config)
        ),
        problem=f"is below the rows of a batch: {{environment}} makes {_SEVERAL}",
        remedy="set it to the rows of a batch",
        only_warns=lambda run: run.may_be_several,
    ),
    Refusal(
        key=ESTIMATOR_KEY,
        when=lambda run: (
            run.is_v1
            and run.several
            and (estimator := run[ESTIMATOR_KEY]) not in _VOTING
            and estimator in registered_estimators()  # an unknown one has its own message
        ),
        problem="{value} counts each sample, and {environment} makes several of a trajectory: long ones would decide",
        remedy=f"use one with a vote for each trajectory: {', '.join(_VOTING)}",
        only_warns=lambda run: run.may_be_several,
    ),
    Refusal(
        key="critic.enable",
        when=lambda run: run.is_v1 and run.several and run["critic.enable"],
        problem=f"{{environment}} makes {_SEVERAL}, and the critic's steps are not bounded",
        remedy="set critic.enable=False",
        only_warns=lambda run: run.may_be_several,
    ),
    Refusal(
        key="transfer_queue.backend.SimpleStorage.required_node_resource",
        when=lambda run: (
            (hosts := run.environment.hosts) is not None
            and hosts.ray is not None
            and run.joins_a_cluster
            and not run["transfer_queue.backend.SimpleStorage.required_node_resource"]
        ),
        problem="is not given, so TransferQueue would pin its storage to the nodes of shards as well",
        remedy="start the trainer's nodes with --resources='{{\"tq_storage\": 1}}' and name tq_storage here",
        seen=VERL,
    ),
)


def check_environment(run: Run) -> None:
    """Validate that a batch of the environment can be trained on.

    Raises:
        ConfigError: rows of `OF_AN_ENVIRONMENT`, or a context of `compact` has no room for its summary.
    """
    refuse(OF_AN_ENVIRONMENT, run)
    if run.is_v1:
        limits = limits_for(run.environment, run.config.actor_rollout_ref.rollout)
        check_compaction(run.environment, limits, place=run.place("strategy.compact.at_tokens"))
