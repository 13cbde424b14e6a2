"""verl's processes import the CPU adapter by VERL_USE_EXTERNAL_MODULES."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def python(program: str, **environment: str) -> str:
    """Standard output of a fresh interpreter; what verl registers, it registers for the whole process."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("VERL_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout


MODULES = "mcp_rollout.rollout.verl_cpu.accelerator,mcp_rollout.rollout.verl.trainer"
HEAVY = (
    "import sys, mcp_rollout.rollout.verl_cpu.{}; print({{'torch', 'ray', 'verl', 'transformers'}} & set(sys.modules))"
)


def test_processes_that_start_workers_never_import_verl() -> None:
    """Each of a job's eight workers is started by one; importing verl takes seconds and 400 MB."""
    assert python(HEAVY.format("prefork"), VERL_USE_EXTERNAL_MODULES=MODULES) == "set()\n"


REGISTERED = """
import sys
import {first}
import verl
from verl.utils.device import get_device_name
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.engine.base import EngineRegistry
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, get_rollout_class
from verl.workers.rollout.replica import get_rollout_replica_class
import torch.distributed as dist

def say(*words):
    print("REGISTERED", *words)

say(get_device_name())
say(get_rollout_replica_class("transformers_cpu").__name__, get_rollout_class("transformers_cpu").__name__)
say(_ROLLOUT_REGISTRY["sglang", "async"], "sglang" in sys.modules)
say(EngineRegistry.get_engine_cls("language_model", "fsdp2").__name__)
initialize_global_process_group_ray(timeout_second=None)
say(dist.get_backend())
dist.destroy_process_group()
"""


@pytest.fixture(
    scope="module", params=[pytest.param("verl", marks=pytest.mark.full), "mcp_rollout.rollout.verl_cpu.server"]
)
def printed(request: pytest.FixtureRequest) -> list[str]:
    """By lines, what a process says of all that follows, which has imported this first: the imports take 12 s."""
    given = {"DIST_INIT_METHOD": "tcp://127.0.0.1:0", "RANK": "0", "VERL_USE_EXTERNAL_MODULES": MODULES}
    support = str(Path(__file__).parents[2] / "support")
    return python(REGISTERED.format(first=request.param) + REFERENCE + MOVED, PYTHONPATH=support, **given).splitlines()


def test_importing_verl_prepares_it_whichever_is_imported_first(printed: list[str]) -> None:
    assert [line.removeprefix("REGISTERED ") for line in printed if line.startswith("REGISTERED ")] == [
        "cpu",
        "TransformersReplica TransformersAdapter",
        "mcp_rollout.rollout.verl_cpu.sglang_replica.SGLangCPUAdapter False",
        "FSDPEngineWithLMHead",
        "cpu:gloo",
    ]


BESIDE = """
import asyncio, os
import verl
from verl.utils.device import get_device_name
from verl.workers.engine.base import EngineRegistry
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import get_rollout_replica_class
import ray
from mcp_rollout.rollout.verl_cpu.replica import _beside

class Seen:
    def gpus(self):
        return os.environ.get("CUDA_VISIBLE_DEVICES"), ray.get_runtime_context().get_node_id()

ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, logging_level="ERROR")
actor = ray.remote(Seen)
held = [actor.options(num_gpus=1).remote() for _ in range(2)]
places = asyncio.run(asyncio.wait_for(_beside(held[1]), 60))
beside = actor.options(num_cpus=0, **places).remote()
print(ray.get(beside.gpus.remote()) == ray.get(held[1].gpus.remote()) != ray.get(held[0].gpus.remote()))
ray.shutdown()
print(get_device_name(), sorted(EngineRegistry._engines["language_model"]["fsdp2"]))
print(get_rollout_replica_class("transformers_cpu").__name__, _ROLLOUT_REGISTRY["transformers_cpu", "async"])
print(_ROLLOUT_REGISTRY["sglang", "async"].startswith("verl."))
"""


@pytest.mark.full
def test_on_a_gpu_the_engine_alone_is_registered_and_shares_the_gpu_of_its_worker() -> None:
    """verl detects no GPU here, so that the platform is named; Ray's GPUs are fake."""
    modules = "mcp_rollout.rollout.verl.trainer,mcp_rollout.rollout.verl_cpu.engine"
    found = python(BESIDE, VERL_PLATFORM="nvidia", VERL_USE_EXTERNAL_MODULES=modules, RAY_AUTH_MODE="disabled")
    assert found.splitlines()[-4:] == [
        "True",
        "cuda ['cuda', 'npu']",
        "TransformersReplica mcp_rollout.rollout.verl_cpu.replica.TransformersAdapter",
        "True",
    ]


REFERENCE = """
import os, sys, tempfile
from pathlib import Path
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # verl's worker asks; the store below is in memory
import mcp_rollout.rollout.verl_cpu.accelerator
import torch
import torch.distributed as dist
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.dataset_utils import DatasetPadMode
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl_config import composed
from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

def batch():
    ids = [torch.arange(3, 3 + length) for length in (37, 15, 20, 9)]
    def column(of):
        return torch.nested.nested_tensor([of(each) for each in ids], layout=torch.jagged)
    mask = column(lambda each: torch.ones_like(each[5:]))
    data = tu.get_tensordict(
        {
            "input_ids": column(lambda each: each),
            "position_ids": column(lambda each: torch.arange(len(each))),
            "prompts": column(lambda each: each[:5]),
            "responses": column(lambda each: each[5:]),
            "loss_mask": mask,
            "response_mask": mask,
        },
        {"temperature": 1.0, "compute_loss": False, "calculate_entropy": False, "global_token_num": [37, 15, 20, 9]},
    )
    tu.assign_non_tensor(data, pad_mode=DatasetPadMode.NO_PADDING)
    return data

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with tempfile.TemporaryDirectory() as folder:
    model = make_tiny_model(Path(folder), hidden=32, layers=1)
    for engine in ("cpu", "cpu_135m", "sglang_cpu"):
        both = {}
        for role in ("actor", "ref"):
            config = composed(model, f"engine={engine}", "actor_rollout_ref.actor.use_kl_loss=True").actor_rollout_ref
            worker = ActorRolloutRefWorker(config=config, role=role)
            worker.init_model()
            compute = worker.compute_log_prob if role == "actor" else worker.compute_ref_log_prob
            both[role] = compute(batch())["log_probs"].values()
        dtypes = {str(each.dtype) for each in both.values()}
        print("REFERENCE", engine, *dtypes, (both["actor"] - both["ref"]).abs().max().item() < 1e-6)
dist.destroy_process_group()
"""


def test_actor_and_reference_are_one_before_the_first_update_in_each_recipe_for_a_cpu(printed: list[str]) -> None:
    """verl's own workers, whose columns share a field of the queue: it refuses a second type."""
    assert [line for line in printed if line.startswith("REFERENCE")] == [
        f"REFERENCE {engine} torch.float32 True" for engine in ("cpu", "cpu_135m", "sglang_cpu")
    ]


MOVED = """
import verl.utils.distributed as distributed

def initialize_global_process_group_ray(backend=None): ...

distributed.initialize_global_process_group_ray = initialize_global_process_group_ray
from mcp_rollout.rollout.verl_cpu.platform import UnsupportedVerl, register
try:
    register()
except UnsupportedVerl as error:
    print("MOVED", str(error).replace("\\n", " "))
"""


def test_a_verl_that_has_moved_is_named_in_the_error(printed: list[str]) -> None:
    (message,) = [line for line in printed if line.startswith("MOVED")]
    assert "initialize_global_process_group_ray has another signature" in message
    assert "verl 0.9.1" in message
