# pyright: basic
"""The `cpu` platform: what verl asks of an accelerator, answered by the host."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from verl.plugin.platform import PlatformBase


def _device_module() -> types.ModuleType:
    """The namespace verl uses like `torch.cuda`. `torch.cpu` has no allocator, so memory is reported as 0 bytes."""

    def nothing(*_: Any) -> None:
        return None

    def zero_bytes(*_: Any) -> int:
        return 0

    module = types.ModuleType("rollout.verl_cpu.device")
    module.__dict__.update(
        is_available=lambda: False,  # "is there an accelerator?", asked before optional work on one
        get_device_name=lambda *_: "CPU",
        current_device=lambda: torch.device("cpu"),
        memory_allocated=zero_bytes,
        memory_reserved=zero_bytes,
        max_memory_allocated=zero_bytes,
        max_memory_reserved=zero_bytes,
        mem_get_info=lambda *_: (0, 0),
        empty_cache=nothing,
        synchronize=nothing,
        set_device=nothing,
        get_rng_state=torch.get_rng_state,
        set_rng_state=torch.set_rng_state,
    )
    return module


class CPUPlatform(PlatformBase):
    """Selected by `VERL_PLATFORM=cpu` and by nothing else."""

    _module = _device_module()

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        return self._module

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """False: every machine has a CPU, so being there is no reason to be chosen."""
        return False

    def current_device(self) -> Any:
        """A device, not an index: verl calls `tensor.to(current_device())`, and torch reads an int as a GPU."""
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        """`GPU`: verl's resource pools count GPU or NPU only, so the engine config makes Ray pretend to have one."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None
