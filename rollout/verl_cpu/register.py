# pyright: basic
"""Everything this package changes in verl 0.9.1, each with its reason. Every change is process-wide."""

from __future__ import annotations

import inspect
import os
import sys

from verl.plugin.platform import PlatformRegistry
from verl.utils import distributed
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

from rollout.verl_cpu.names import ROLLOUT_NAME
from rollout.verl_cpu.platform import CPUPlatform

PYTHON_VARIABLE = "MCP_ROLLOUT_PYTHON"


class VerlMoved(RuntimeError):
    """The installed verl no longer has what this package hooks into."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; rollout.verl_cpu is written for verl 0.9.1, install that version")


def register() -> None:
    """Make `trainer.device=cpu` known to verl, and `rollout.name=transformers_cpu` and `sglang` on it. Safe to repeat.

    Raises:
        VerlMoved: verl's internals are not those of 0.9.1.
    """
    PlatformRegistry.register(platform="cpu")(CPUPlatform)
    _register_rollout()
    _set_process_group_backend()
    _register_engine()
    # Interpolations in Ray's arguments are not resolved, but Ray starts workers with a shell: configs/engine/cpu.yaml
    # names this interpreter by this variable. Processes that Ray starts inherit it.
    os.environ.setdefault(PYTHON_VARIABLE, sys.executable)


def _register_rollout() -> None:
    # verl looks the two halves up in two registries: the replica in the trainer, the adapter in the FSDP worker.
    if not isinstance(_ROLLOUT_REGISTRY, dict) or ("sglang", "async") not in _ROLLOUT_REGISTRY:
        raise VerlMoved("verl.workers.rollout.base._ROLLOUT_REGISTRY is not the table of rollout adapters")
    _ROLLOUT_REGISTRY[(ROLLOUT_NAME, "async")] = "rollout.verl_cpu.replica.TransformersAdapter"
    RolloutReplicaRegistry.register(ROLLOUT_NAME, _load_replica)
    # verl's own SGLang rollout, imported with what stands in for a GPU's packages.
    _ROLLOUT_REGISTRY[("sglang", "async")] = "rollout.verl_cpu.sglang.adapter.SGLangCPUAdapter"
    RolloutReplicaRegistry.register("sglang", _load_sglang_replica)


def _load_replica() -> type[RolloutReplica]:
    from rollout.verl_cpu.replica import TransformersReplica  # imports transformers; wanted in the trainer only

    return TransformersReplica


def _load_sglang_replica() -> type[RolloutReplica]:
    from rollout.verl_cpu.sglang.server import SGLangCPUReplica

    return SGLangCPUReplica


def _set_process_group_backend() -> None:
    # verl asks torch for "cpu:gloo,{device}:{backend}", here "cpu:gloo,cpu:gloo", which torch refuses as a duplicate.
    function = distributed.initialize_global_process_group_ray
    if list(inspect.signature(function).parameters) != ["timeout_second", "backend"]:
        raise VerlMoved("verl.utils.distributed.initialize_global_process_group_ray has another signature")
    function.__defaults__ = (None, "cpu:gloo")


def _register_engine() -> None:
    # verl's FSDP engine runs on any device, but is registered for cuda and npu alone.
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    try:
        backends = EngineRegistry._engines["language_model"]
        devices = backends["fsdp2"]
    except (AttributeError, KeyError) as error:
        raise VerlMoved("verl.workers.engine.base.EngineRegistry has no language_model/fsdp2 table") from error
    if devices.get("cuda", FSDPEngineWithLMHead) is not FSDPEngineWithLMHead:
        raise VerlMoved("verl's fsdp2 engine is not FSDPEngineWithLMHead")
    devices["cpu"] = FSDPEngineWithLMHead
