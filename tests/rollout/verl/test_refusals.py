"""What the preflight refuses or warns of: an example for each row of the tables, and verl's own word on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from structlog.testing import capture_logs
from verl_config import composed

from mcp_rollout.gateway.errors import ConfigError, faults_of
from mcp_rollout.rollout.environment.config import load_environment

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl", "cpu")]

ACTOR, ROLLOUT, SAMPLER = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "trainer.v1.sampler"
MCP, MODE, ESTIMATOR = f"{ROLLOUT}.custom.mcp", "trainer.v1.trainer_mode", "algorithm.adv_estimator"
ENVIRONMENT = f"{MCP}.environment"
MODULES = "ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES"
MINI_BATCH, LOGPROBS, TOKENS = (
    f"{ACTOR}.ppo_mini_batch_size",
    f"{ROLLOUT}.calculate_log_probs",
    f"{ACTOR}.ppo_max_token_len_per_gpu",
)
STORAGE, THRESHOLD = (
    "transfer_queue.backend.SimpleStorage.required_node_resource",
    f"{SAMPLER}.max_off_policy_threshold",
)
CORRECTION = "algorithm.rollout_correction"
STALE, BYPASS, LOSS = f"{CORRECTION}.rollout_is", f"{CORRECTION}.bypass_mode", f"{ACTOR}.policy_loss.loss_mode"
V0 = {"trainer.use_v1": False, ESTIMATOR: "reinforce_plus_plus"}
ASYNC = {MODE: "mcp_colocate_async", f"{SAMPLER}.custom_sampler.name": "MCPReplayBufferAsync", STALE: "token"}
WAIT = {**ASYNC, f"{SAMPLER}.max_off_policy_strategy": "wait", "trainer.v1.colocate_async.num_warmup_batches": 2}
DROPS = {f"{ENVIRONMENT}.thinking.context": "drop_previous"}

PLAIN = "servers: {echo: {command: '${python}'}}\n"
TALKS = "servers: {echo: {command: '${python}', roles: {start: a, reply: b}}}\nuser: {server: echo}\n"
PROGRAM = PLAIN + "agent: {use: 'mcp_rollout.rollout.programs.program:Function', with: {use: 'told:plain'}}\n"
SHARDS = PLAIN + "hosts: {ray: {min: 2, max: 2}}\n"


def strategy(use: str, **options: object) -> dict[str, object]:
    return {
        f"{ENVIRONMENT}.strategy.use": use,
        **{f"{ENVIRONMENT}.strategy.{use}.{key}": value for key, value in options.items()},
    }


RUNS: list[tuple[dict[str, object], dict[str, str]]] = [
    ({}, {}),
    (ASYNC, {}),
    ({"data.train_files": None}, {"data.train_files": "is not given"}),
    ({"actor_rollout_ref.model.path": None}, {"actor_rollout_ref.model.path": "is not given"}),
    ({f"{ROLLOUT}.custom.environment": {"limits": {"attempts": 2}}}, {f"{ROLLOUT}.custom": "are read below mcp only"}),
    ({f"{ROLLOUT}.custom.theirs": {"use": "tree"}}, {}),
    ({f"{MCP}.seed": 3, f"{MCP}.sampling_seed_key": None}, {f"{MCP}.seed": "is 3, and requests have no seed"}),
    ({MODULES: "mine"}, {MODULES: "does not name mcp_rollout.rollout.verl.trainer"}),
    ({MODULES: "mine", MODE: "sync"}, {}),
    ({f"{SAMPLER}.custom_sampler.name": "MCPReplayBufferAsync"}, {f"{SAMPLER}.custom_sampler.name": "is MCPReplay"}),
    ({**ASYNC, f"{SAMPLER}.custom_sampler.name": "MCPReplayBuffer"}, {f"{SAMPLER}.custom_sampler.name": "another"}),
    ({f"{SAMPLER}.sync_refill_failed_groups": True}, {f"{SAMPLER}.sync_refill_failed_groups": "is True"}),
    ({**WAIT, THRESHOLD: 2}, {THRESHOLD: "is 2, and verl trains on older prompts"}),
    ({**WAIT, THRESHOLD: 3}, {}),
    ({STALE: "token", LOGPROBS: False}, {LOGPROBS: "leaves algorithm.rollout_correction out"}),
    ({LOGPROBS: False}, {}),
    ({**ASYNC, STALE: None}, {STALE: "warned"}),
    ({**ASYNC, STALE: None, BYPASS: True}, {}),
    ({BYPASS: True, STALE: "token"}, {}),
    ({BYPASS: True, LOSS: "cispo", MINI_BATCH: 8}, {BYPASS: "is True beside the loss cispo"}),
    ({**V0, BYPASS: True, LOSS: "geo_mean"}, {BYPASS: "v0 trainer then replaces"}),
    ({BYPASS: True, f"{CORRECTION}.loss_type": "reinforce"}, {BYPASS: "leaves out rollout_rs and loss_type"}),
    ({LOSS: "gspo"}, {MINI_BATCH: "warned"}),
    ({LOSS: "gspo", f"{ACTOR}.ppo_epochs": 2}, {}),
    ({f"{ROLLOUT}.top_p": 0.8}, {f"{ROLLOUT}.top_p": "warned"}),
    ({f"{ROLLOUT}.top_k": 20}, {f"{ROLLOUT}.top_p": "warned"}),
    ({f"{ROLLOUT}.temperature": 0}, {f"{ROLLOUT}.temperature": "is 0, and the trainer divides by it"}),
    ({f"{ROLLOUT}.temperature": 0, f"{ROLLOUT}.n": 1, "trainer.val_only": True}, {}),
    ({f"{ROLLOUT}.n": 1}, {f"{ROLLOUT}.n": "is 1, and grpo compares the trajectories of a group"}),
    ({f"{ROLLOUT}.n": 1, ESTIMATOR: "step_grpo"}, {f"{ROLLOUT}.n": "step_grpo compares"}),
    ({f"{ROLLOUT}.n": 1, ESTIMATOR: "reinforce_plus_plus"}, {}),
    ({"trainer.use_v1": False}, {ESTIMATOR: "a withdrawn one has a reward of 0"}),
    (V0, {}),
    ({ESTIMATOR: "tree_grpo", MODE: "sync"}, {ESTIMATOR: "needs columns"}),
    ({ESTIMATOR: "gae"}, {ESTIMATOR: "needs a critic"}),
    ({f"{MCP}.record_trained": True}, {}),
    ({f"{MCP}.record_trained": True, MODE: "sync"}, {f"{MCP}.record_trained": "write no record"}),
    ({f"{ACTOR}.use_dynamic_bsz": True, TOKENS: 4096}, {TOKENS: "is 4096, and a longer trajectory"}),
    ({f"{ACTOR}.use_dynamic_bsz": True, TOKENS: 12288}, {}),
]
"""Changes of `engine=cpu`, and what is said by key: a part of the refusal, or "warned"."""

ENVIRONMENTS: list[tuple[str, dict[str, object], dict[str, str]]] = [
    (PLAIN, {}, {}),
    (PLAIN, {**V0, **strategy("tree")}, {f"{ENVIRONMENT}.strategy.use": "warned"}),
    (PLAIN, {**V0, **strategy("compact")}, {f"{ENVIRONMENT}.strategy.use": "several training samples of one"}),
    (PROGRAM, V0, {"agent.use": "verl's v0 trainer takes one"}),
    (TALKS, {**V0, **DROPS}, {f"{ENVIRONMENT}.thinking.context": "verl's v0 trainer takes one"}),
    (PLAIN, {**V0, **DROPS}, {}),  # without a further user message, nothing is dropped
    (PLAIN, strategy("tree", roots=8), {f"{ENVIRONMENT}.strategy.tree.roots": "is not below the leaves"}),
    (PLAIN + "strategy: {use: tree, tree: {roots: 9}}", {}, {"strategy.tree.roots": "is not below the leaves"}),
    (PLAIN, strategy("tree", branch_at="entropy"), {}),
    (
        PLAIN,
        {**strategy("tree", branch_at="entropy"), LOGPROBS: False},
        {f"{ENVIRONMENT}.strategy.tree.branch_at": "entropy"},
    ),
    (PLAIN, strategy("single_turn"), {}),
    (PLAIN, {**strategy("single_turn"), MODE: "sync"}, {MODE: "env makes several samples of a trajectory"}),
    (PLAIN, {**strategy("single_turn"), MINI_BATCH: 16}, {MINI_BATCH: "is below the rows of a batch"}),
    (PLAIN, {**strategy("single_turn"), LOSS: "gspo", f"{ACTOR}.ppo_epochs": 2}, {}),
    (PLAIN, {**strategy("single_turn"), "critic.enable": True}, {"critic.enable": "steps are not bounded"}),
    (PLAIN, {**strategy("single_turn"), ESTIMATOR: "rloo"}, {ESTIMATOR: "rloo counts each sample"}),
    (PLAIN, {**strategy("single_turn"), ESTIMATOR: "stepgrpo"}, {}),
    (PROGRAM, {}, {}),
    (PROGRAM, {MODE: "sync"}, {MODE: "warned"}),
    (PROGRAM, {MINI_BATCH: 1}, {MINI_BATCH: "warned"}),
    (TALKS, {**DROPS, ESTIMATOR: "rloo", "critic.enable": True}, {ESTIMATOR: "warned", "critic.enable": "warned"}),
    (PLAIN, strategy("compact", at_tokens=4000), {}),
    (
        PLAIN,
        {**strategy("compact"), "data.max_response_length": 7000},
        {f"{ENVIRONMENT}.strategy.compact.at_tokens": "is 6144"},
    ),
    (SHARDS, {}, {}),
    (SHARDS, {"trainer.nnodes": 2}, {STORAGE: "pin its storage to the nodes of shards"}),
    (SHARDS, {"trainer.nnodes": 2, STORAGE: "tq_storage"}, {}),
]


@pytest.fixture(scope="module")
def cpu() -> None:
    """The process as the preflight prepares it."""
    import mcp_rollout.rollout.verl_cpu.accelerator  # noqa: F401


@cache
def base() -> DictConfig:
    return composed(Path("model"))


def run_of(changes: Mapping[str, object]) -> Any:
    from mcp_rollout.rollout.verl.refused_run import Run
    from mcp_rollout.rollout.verl.settings import Settings

    config = base().copy()
    for key, value in changes.items():
        OmegaConf.update(config, key, value, force_add=True)
    return Run(config, Settings.of(config))


def in_environment(file: Path, text: str, changes: Mapping[str, object]) -> Any:
    from mcp_rollout.rollout.verl.refused_run import Run

    file.write_text(text)
    run = run_of(changes)
    return Run(run.config, run.settings, run.settings.apply(load_environment(file)))


def said(check: Any, *arguments: Any) -> dict[str, str]:
    """What a check says by key: the refusal, or "warned"."""
    with capture_logs() as logs:
        try:
            check(*arguments)
            faults: tuple[ConfigError, ...] = ()
        except ConfigError as error:
            faults = faults_of(error)
    assert all(fault.remedy for fault in faults) and all(entry["remedy"] for entry in logs)
    return {str(fault.key): fault.problem for fault in faults} | {entry["key"]: "warned" for entry in logs}


def assert_said(found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    assert found.keys() == wanted.keys() and all(part in found[key] for key, part in wanted.items()), found


def rows() -> Iterator[Any]:
    from mcp_rollout.rollout.verl import refusals

    yield from (*refusals.GIVEN, *refusals.OF_THE_RUN, *refusals.OF_AN_ENVIRONMENT)


@pytest.mark.parametrize(("changes", "wanted"), RUNS)
def test_a_run_is_refused_with_key_and_remedy(changes: dict[str, object], wanted: dict[str, str]) -> None:
    from mcp_rollout.rollout.training.refusals import refuse
    from mcp_rollout.rollout.verl.refusals import GIVEN, OF_THE_RUN

    assert_said(said(refuse, (*GIVEN, *OF_THE_RUN), run_of(changes)), wanted)


@pytest.mark.parametrize(("text", "changes", "wanted"), ENVIRONMENTS)
def test_an_environment_is_refused_with_key_and_remedy(
    text: str, changes: dict[str, object], wanted: dict[str, str], tmp_path: Path
) -> None:
    from mcp_rollout.rollout.verl.refusals import check_environment

    assert_said(said(check_environment, in_environment(tmp_path / "env.yaml", text, changes)), wanted)


def test_modules_that_verls_processes_would_not_import_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.plugin.platform import get_platform, set_platform
    from verl.plugin.platform.platform_cuda import PlatformCUDA

    from mcp_rollout.rollout.training.refusals import refuse
    from mcp_rollout.rollout.verl.refusals import OF_THE_RUN

    ours = get_platform()
    set_platform(PlatformCUDA())
    try:
        assert_said(said(refuse, OF_THE_RUN, run_of({})), {MODULES: "makes a CPU verl's platform"})
    finally:
        set_platform(ours)
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "theirs")
    assert_said(said(refuse, OF_THE_RUN, run_of({})), {MODULES: "hides modules of your environment"})


def test_each_row_has_an_example_above_and_verl_accepts_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row whose example verl refuses by itself can go; after an upgrade each is to be seen again."""
    import verl
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    runs = [run_of(changes) for changes, _ in RUNS]
    runs += [in_environment(tmp_path / "env.yaml", text, changes) for text, changes, _ in ENVIRONMENTS]
    alone = {"hides modules", "names no module"}  # above, since they are about this process
    for row in rows():
        examples = [run for run in runs if holds(row, run)]
        assert examples or any(row.problem.startswith(each) for each in alone), row
        assert row.seen in ("", f"verl {verl.__version__}")
        for run in examples if row.seen else ():
            validate_config(run.config, need_reference_policy(run.config), need_critic(run.config))
    capsys.readouterr()


def holds(row: Any, run: Any) -> bool:
    from mcp_rollout.rollout.verl.refusals import OF_AN_ENVIRONMENT

    return bool((run.own_environment or row not in OF_AN_ENVIRONMENT) and row.when(run))


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    from mcp_rollout.rollout.verl.refusals import check_environment

    wrong = {MODE: "sync", MINI_BATCH: 16, ESTIMATOR: "rloo", "critic.enable": True}
    run = in_environment(tmp_path / "env.yaml", PLAIN, {**strategy("single_turn"), **wrong})
    assert list(said(check_environment, run)) == [MODE, MINI_BATCH, ESTIMATOR, "critic.enable"]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("cluster", [None, "RAY_ADDRESS", "nnodes", "ray start"])
def test_an_engine_and_its_gpus_are_here_or_in_a_cluster(
    engine: str, cluster: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcp_rollout.rollout.training.refusals import refuse
    from mcp_rollout.rollout.verl.refusals import OF_THE_MACHINE

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, engine, None)
    if cluster == "RAY_ADDRESS":
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    elif cluster == "ray start":
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379")
    changes = {f"{ROLLOUT}.name": engine, "trainer.device": "cuda"} | (
        {"trainer.nnodes": 2} if cluster == "nnodes" else {}
    )
    wanted = {f"{ROLLOUT}.name": f"{engine} is not installed", "trainer.n_gpus_per_node": "no GPU is available"}
    assert_said(said(refuse, OF_THE_MACHINE, run_of(changes)), {} if cluster else wanted)


def test_the_command_that_installs_an_engine_names_its_lock() -> None:
    from mcp_rollout.rollout.verl.refusals import OF_THE_MACHINE

    remedy = OF_THE_MACHINE[0].remedy.format(value="sglang")
    assert Path(remedy.split("-r ")[1].split(";")[0]).is_file()
