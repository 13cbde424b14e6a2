"""examples/own_parts.py: the loss and the sampler alone, and all parts in one training, by the keys of the docs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from verl_run import logged, train

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]

ROOT = Path(__file__).parents[3]


def test_the_loss_has_the_gradient_of_the_policy_gradient_with_bounded_weights() -> None:
    import own_parts
    import torch
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    config = SimpleNamespace(clip_ratio=0.2, clip_ratio_high=None, global_batch_info={})
    old = torch.tensor([[-1.0, -2.0, -3.0]])
    new = torch.tensor([[-1.0, -1.0, -3.0]], requires_grad=True)
    mask, advantages = torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[2.0, -1.0, 5.0]])
    loss, metrics = get_policy_loss_fn("cispo_like")(old, new, advantages, mask, "token-mean", config)
    loss.backward()
    assert own_parts.clipped_weights is get_policy_loss_fn("cispo_like")
    assert new.grad is not None and new.grad.tolist() == [[pytest.approx(-1.0), pytest.approx(0.6), 0.0]]
    assert metrics == {"actor/clipped_share": 0.5}


def test_the_sampler_takes_the_largest_groups_and_then_the_oldest() -> None:
    import own_parts

    buffer: Any = object.__new__(own_parts.FullGroupsFirst)
    buffer.prompt_global_steps = {"train": {"a": 1, "b": 2, "c": 3}}
    buffer.partitions = {"train": {key: {} for key in ["a_0_0", "b_0_0", "b_1_0", "c_0_0", "c_1_0"]}}
    assert buffer._select_prompt_uids("train", {"a", "b", "c"}, 2)[0] == ["b", "c"]
    assert buffer._select_prompt_uids("train", {"a", "c"}, 1)[0] == ["c"]
    assert buffer._select_prompt_uids("train", {"a"}, 2)[0] == ["a"]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_all_parts_train_by_the_command_of_the_docs(tmp_path: Path) -> None:
    from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

    page = (ROOT / "docs" / "own_parts.md").read_text()
    shown = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0].replace("\\\n", "")
    overrides = dict(
        each.split("=", 1) for each in shlex.split(shown) if re.match(r"(ray_kwargs|actor|trainer)\.?", each)
    )
    assert len(overrides) == 5
    rows, model = tmp_path / "rows.parquet", make_tiny_model(tmp_path / "model", hidden=32, layers=1)
    command = [Path(sys.executable).with_name("mcp-rollout"), "data", "calculator", "--split", "train", "-n", "2"]
    subprocess.run([*command, "-o", rows], check=True)
    given = {
        "data.train_files": rows,
        "data.train_batch_size": 2,
        "data.max_prompt_length": 2048,
        "data.max_response_length": 64,
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.rollout.n": 2,
        "trainer.total_training_steps": 1,
    }
    done = train(tmp_path, given | overrides, PYTHONPATH=str(ROOT / "examples"))
    assert done.returncode == 0, done.stdout[-4000:]
    (step,) = logged(tmp_path).values()
    assert step["actor/clipped_share"] == 0.0 and step["mcp/trajectories"] == 4.0
    assert re.search(r"prompts issued.*prompts.*2", done.stdout)
