"""The trainer `mcp_sync` beside verl's `sync`: batches, refill and resume are equal; padding has no weight.

Advantages by turn go from TransferQueue through verl's own code and back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import verl_config
from omegaconf import DictConfig, OmegaConf

from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

pytestmark = [
    pytest.mark.verl,
    pytest.mark.usefixtures("imported_verl"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),  # of verl and torch about themselves
]

ROOT = Path(__file__).parents[4]
ROWS, BATCH = 10, 4
FILTER = ("algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=reward")
Compose = Callable[..., DictConfig]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=64, layers=1)


@pytest.fixture
def composed(tmp_path: Path, model: Path) -> Compose:
    row = {"data_source": "echo", "agent_name": "mcp_agent", "prompt": [{"role": "user", "content": "Shout plum."}]}
    mcp = {"environment": "echo", "task": "t", "seed": 1, "tools": None}
    rows = [{**row, "extra_info": {"index": index, "mcp": mcp}} for index in range(ROWS)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")

    def config(mode: str, *overrides: str) -> DictConfig:
        given = {
            "data.train_files": tmp_path / "rows.parquet",
            "data.train_batch_size": BATCH,
            "data.seed": 7,
            "actor_rollout_ref.rollout.n": 3,
            "actor_rollout_ref.rollout.custom.mcp.environments_dir": ROOT / "configs" / "environments",
            "trainer.default_local_dir": tmp_path / mode,
            "trainer.v1.trainer_mode": mode,
        }
        found = verl_config.composed(model, *(f"{key}={value}" for key, value in given.items()), *overrides)
        OmegaConf.resolve(found)
        return OmegaConf.create(OmegaConf.to_container(found))

    return config


def trainer(config: DictConfig) -> Any:
    """The trainer that verl makes of a configuration, with its data, but without models."""
    from verl.trainer.ppo.v1 import get_trainer_cls

    import mcp_rollout.rollout.verl.trainer  # noqa: F401

    made: Any = get_trainer_cls(config.trainer.v1.trainer_mode)(config)
    made._init_tokenizer()
    made._init_dataloader()
    made.global_steps = 0
    return made


@pytest.fixture
def both(composed: Compose) -> Callable[..., list[Any]]:
    return lambda *overrides: [trainer(composed(mode, *overrides)) for mode in ("sync", "mcp_sync")]


def indices(batch: Any) -> list[int]:
    return [info["index"] for info in batch["extra_info"]]


@pytest.mark.parametrize("overrides", [(), FILTER])
def test_batches_and_refills_are_those_of_sync(both: Callable[..., list[Any]], overrides: tuple[str, ...]) -> None:
    sync, ours = both(*overrides)
    assert type(sync.replay_buffer) is type(ours.replay_buffer)
    assert (
        ours.config.data.get("gen_batch_size") == sync.config.data.get("gen_batch_size") == (1 if overrides else None)
    )
    sizes = [None, 1, 2, None] if overrides else [None] * 4  # verl's batches, and the refills of filtered groups
    for size in sizes:
        drawn = indices(sync._next_train_batch(size))
        assert indices(ours._next_train_batch(size)) == drawn and len(drawn) == (size or BATCH)


class Prompts:
    """In place of verl's agent loop manager: the prompts that it was given."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def generate_sequences(self, batch: Any) -> None:
        self.given += indices(batch)


@pytest.mark.usefixtures("transfer_queue")
def test_prompts_are_submitted_as_by_sync(both: Callable[..., list[Any]]) -> None:
    import transfer_queue as tq

    kept: list[Any] = []
    for made in both(*FILTER):
        made.agent_loop_manager = Prompts()
        made.prepare_step()
        made.replay_buffer.refill_fn(2)
        prompts = tq.kv_list("train")["train"]
        kept.append((made.agent_loop_manager.given, list(prompts.values())))
        tq.kv_clear(partition_id="train", keys=list(prompts))
    assert kept[0] == kept[1] and len(kept[0][0]) == BATCH + 2


class Weights:
    """In place of verl's worker group: what it was asked to save and load."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def save_checkpoint(self, path: str, *_: Any, **__: Any) -> None:
        self.asked.append(f"save {Path(path).parent.name}")

    def load_checkpoint(self, local_path: str, **_: Any) -> None:
        self.asked.append(f"load {Path(local_path).parent.name}")


def test_a_checkpoint_of_sync_is_resumed_with_the_rows_that_come_next(both: Callable[..., list[Any]]) -> None:
    sync, ours = both()
    for made in (sync, ours):
        made.actor_rollout_wg, made.global_steps = Weights(), 1
        made._next_train_batch()
        made._save_checkpoint()
    files = [
        sorted(str(path.relative_to(made.config.trainer.default_local_dir)) for path in _under(made))
        for made in (sync, ours)
    ]
    assert files[0] == files[1]  # nothing of TransferQueue, which the asynchronous modes save
    expected = indices(sync._next_train_batch())
    for own, other in ((sync, ours), (ours, sync)):
        resumed = trainer(copy.deepcopy(own.config))
        resumed.config.trainer.default_local_dir = other.config.trainer.default_local_dir
        resumed.actor_rollout_wg = Weights()
        resumed._load_checkpoint()
        assert (resumed.global_steps, resumed.actor_rollout_wg.asked) == (1, ["load global_step_1"])
        assert resumed._reissue_inflight_prompts() == 0
        assert indices(resumed._next_train_batch()) == expected


def _under(made: Any) -> list[Path]:
    return [path for path in Path(made.config.trainer.default_local_dir).rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("mode", "overrides", "multiple"),
    [
        ("sync", [], BATCH * 3),
        ("mcp_sync", [], 2 * 4),
        ("mcp_sync", ["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=6"], 2 * 12),
        ("mcp_sync", ["actor_rollout_ref.actor.ppo_mini_batch_size=2"], 2 * 3),
        (
            "mcp_sync",
            ["actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True"],
            2,
        ),
    ],
)
def test_a_batch_is_filled_up_to_whole_micro_batches(
    composed: Compose, mode: str, overrides: list[str], multiple: int
) -> None:
    assert trainer(composed(mode, *overrides))._get_required_batch_multiple(2) == multiple


LOSSES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@pytest.mark.parametrize("mode", LOSSES)
def test_padding_has_no_weight_in_any_loss(composed: Compose, mode: str) -> None:
    """With what our trainer hands to verl's loss: one mini-batch of all samples, and the number of real ones."""
    import torch
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.core_algos import agg_loss

    made = trainer(composed("mcp_sync"))
    handed: list[dict[str, Any]] = []

    class Actor:
        def update_actor(self, batch: KVBatchMeta) -> dict[str, Any]:
            handed.append(dict(KVBatchMeta(batch.keys, batch.tags, extra_info=batch.extra_info).extra_info or {}))
            return {"metrics": {"mfu": [0.0]}}

    made.actor_rollout_wg = Actor()
    keys = [f"a_{sample}_0" for sample in range(5)] + [f"pad_{sample}_0" for sample in range(3)]
    tags = [{"is_padding": key.startswith("pad")} for key in keys]
    made._update_actor(KVBatchMeta(keys, tags, extra_info={"temperature": 1.0}), {})
    (info,) = handed
    assert (info["mini_batch_size"], info["global_batch_size"], info["temperature"]) == (8, 5, 1.0)

    losses = torch.rand(8, 6, generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(6) < torch.tensor([[3], [6], [1], [4], [2], [0], [0], [0]])).float()
    tokens = int(mask.sum())
    padded = agg_loss(losses, mask, mode, batch_num_tokens=tokens, global_batch_size=info["global_batch_size"])
    alone = agg_loss(losses[:5], mask[:5], mode, batch_num_tokens=tokens, global_batch_size=5)
    assert padded.item() == pytest.approx(alone.item())
    assert alone.item() == pytest.approx(agg_loss(losses[:5], mask[:5], mode).item())


def trainer_of(estimator: str) -> Any:
    """Our trainer with its configuration alone."""
    from mcp_rollout.rollout.verl.settings import AdvantagesConfig
    from mcp_rollout.rollout.verl.trainer import MCPTrainer

    made = object.__new__(MCPTrainer)
    made.config = verl_config.composed(Path("model"), f"algorithm.adv_estimator={estimator}")
    made._advantages = AdvantagesConfig()
    return made


def of_turns(lengths: list[int]) -> Any:
    """By token, the turn that it belongs to: an unsampled token follows each turn but the last."""
    import torch

    found: list[int] = []
    for turn, length in enumerate(lengths):
        found += [turn] * length + ([-1] if turn < len(lengths) - 1 else [])
    return torch.tensor(found)


@pytest.mark.usefixtures("transfer_queue")
@pytest.mark.parametrize("estimator", ["grpo", "tree_grpo", "step_grpo"])
def test_advantages_by_turn_go_through_verls_own_code(estimator: str) -> None:
    """A tree of three leaves and a chain of the same row, a row of another agent, and one that fills the batch up."""
    import torch
    import transfer_queue as tq
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    made = trainer_of(estimator)
    leaves = {  # by key: tree, shared turns, tokens of each turn, score, anchors
        "u_0_0": ("t0", 0, [2, 1, 2], 1.0, ["start", "a", "b"]),
        "u_1_0": ("t1", 0, [1, 1], 0.0, ["start", "start"]),
        "u_2_0": ("t0", 1, [2, 3], 0.5, ["start", "a"]),
        "u_3_0": ("t0", 2, [2, 1, 1], 0.25, ["start", "a", "b"]),
        "pad_0_0": ("t0", 0, [1], 0.0, ["start"]),
    }
    rows: list[dict[str, Any]] = []
    for key, (tree, shared, lengths, score, anchors) in leaves.items():
        turns = of_turns(lengths)
        mask = (turns >= 0).long() * (not key.startswith("pad"))
        rewards = torch.zeros(len(turns))
        rewards[-1] = score
        of_trajectory = {"turns": len(lengths), "tree": tree, "shared_turns": shared, "rewards": [], "anchors": anchors}
        logprobs = {"rollout_log_probs": torch.zeros(len(turns)), "old_log_probs": torch.zeros(len(turns))}
        rows.append(
            {
                "uid": key.split("_")[0],
                "response_mask": mask,
                "rm_scores": rewards,
                "extra_fields": {"mcp_trace": key, "mcp_segment": 0},
                "mcp_turns": turns,
                "mcp": of_trajectory,
                **logprobs,
            }
        )
    order = [3, 4, 0, 2, 1]
    keys = [list(leaves)[at] for at in order]
    tags = [{"is_padding": key.startswith("pad")} for key in keys]
    fields = list_of_dict_to_tensordict([rows[at] for at in order])
    tq.kv_batch_put(keys=keys, partition_id="train", fields=fields, tags=tags)
    others = {"v_0_0": 1.0, "v_1_0": 0.0}  # scores of verl's own agents, whose samples have no columns of ours
    stock: list[dict[str, Any]] = [
        {
            "uid": "v",
            "response_mask": torch.tensor([1, 0, 1]),
            "rm_scores": torch.tensor([0.0, 0.0, score]),
            "extra_fields": {"turn_scores": []},
            "rollout_log_probs": torch.zeros(3),
            "old_log_probs": torch.zeros(3),
        }
        for score in others.values()
    ]
    fields, of_others = list_of_dict_to_tensordict(stock), [{"is_padding": False} for _ in others]
    tq.kv_batch_put(keys=list(others), partition_id="train", fields=fields, tags=of_others)
    keys, tags = [*keys, *others], [*tags, *of_others]
    metrics: dict[str, Any] = {}
    made._compute_advantage(tq.KVBatchMeta(partition_id="train", keys=keys, tags=tags), metrics)
    data = tq.kv_batch_get([*leaves, *others], "train", select_fields=["advantages", "response_mask"])
    found = {
        key: [value for value, mask in zip(row.tolist(), own.tolist(), strict=True) if mask]
        for key, row, own in zip([*leaves, *others], data["advantages"], data["response_mask"], strict=True)
    }
    assert found.pop("pad_0_0") == []
    assert [found.pop(key) for key in others] == [
        pytest.approx([half] * 2, abs=1e-4) for half in (0.5**0.5, -(0.5**0.5))
    ]
    scores = torch.tensor([1.0, 0.0, 0.5, 0.25])
    scale = scores.std() + 1e-6
    grpo = {key: float((leaves[key][3] - scores.mean()) / scale) for key in found}
    wanted = {key: [value] * sum(leaves[key][2]) for key, value in grpo.items()}
    if estimator == "tree_grpo":
        # Below turn 1 are all three leaves, below turn 2 the root and the third.
        at_1, at_2 = (1.0 + 0.5 + 0.25) / 3, (1.0 + 0.25) / 2
        for key, baselines in {"u_0_0": [at_1, at_2], "u_2_0": [at_1], "u_3_0": [at_1, at_2]}.items():
            of_leaf = [grpo[key] / 2 + (leaves[key][3] - mean) / float(scale) / 2 for mean in baselines]
            by_turn = zip([grpo[key], *of_leaf], leaves[key][2], strict=True)
            wanted[key] = [value for value, length in by_turn for _ in range(length)]
    elif estimator == "step_grpo":
        # The score is the return of every turn, so a state's baseline is the mean of those who came to it, as often.
        came = {
            "start": torch.tensor([1.0, 0.0, 0.0, 0.5, 0.25]),
            "a": torch.tensor([1.0, 0.5, 0.25]),
            "b": torch.tensor([1.0, 0.25]),
        }
        for key, value in grpo.items():
            steps = [
                value + float((leaves[key][3] - came[anchor].mean()) / (came[anchor].std() + 1e-6))
                if anchor in came
                else value
                for anchor in leaves[key][4]
            ]
            wanted[key] = [step for step, length in zip(steps, leaves[key][2], strict=True) for _ in range(length)]
    for key, values in wanted.items():
        assert found[key] == pytest.approx(values, abs=1e-4), key


@pytest.mark.usefixtures("transfer_queue")
def test_samples_of_single_turns_get_their_turns_advantage_and_padding_gets_none() -> None:
    """Through TransferQueue, as the trainer reads it: rows in any order, one of them padding."""
    import torch
    import transfer_queue as tq
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    from mcp_rollout.rollout.verl.estimators import by_token, read
    from mcp_rollout.rollout.verl.settings import AdvantagesConfig

    column = {"turns": 2, "tree": "t", "shared_turns": 0, "rewards": [], "anchors": ["start", ""]}
    rows = {
        "u_0_0": torch.tensor([0, 0, -1]),
        "u_0_1": torch.tensor([1]),
        "u_1_0": torch.tensor([0, -1, 1]),
        "pad0_0_0": torch.tensor([0]),
    }
    fields = list_of_dict_to_tensordict(
        [
            {"extra_fields": {"mcp_trace": key}, "mcp_turns": turns, "mcp": column | {"tree": key}}
            for key, turns in rows.items()
        ]
    )
    tags = [{"is_padding": key.startswith("pad")} for key in rows]
    tq.kv_batch_put(keys=list(rows), partition_id="train", fields=fields, tags=tags)
    order = [3, 1, 2, 0]
    keys, placed = [list(rows)[at] for at in order], [tags[at] for at in order]
    batch = read(tq.KVBatchMeta(partition_id="train", keys=keys, tags=placed), AdvantagesConfig())
    assert [(each.row, each.is_last) for each in batch.samples] == [(1, True), (2, True), (3, False)]
    seen: list[Any] = []

    def estimate(rolled_out: Any) -> list[list[float]]:
        seen.extend(rolled_out)
        return [[10.0 * index + turn + 1 for turn in range(each.turns)] for index, each in enumerate(rolled_out)]

    rewards = torch.tensor([[9.0, 0, 0], [0.25, 0, 0], [0, 0, 0.75], [0, 0.5, 0]])
    mask = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 0, 1], [1, 1, 0]])
    found = by_token(batch, rewards, mask, estimate)
    assert found.tolist() == [[0, 0, 0], [2, 0, 0], [11, 0, 12], [1, 1, 0]]
    assert [(each.uid, each.score) for each in seen] == [("u", 0.25), ("u", 0.75)]  # the last sample's, once
