"""Makes SGLang 0.5.18 importable without a GPU: stand-ins for packages that it imports unconditionally.

SGLang has a CPU mode, but imports GPU-only packages even there. Its `torch_native` attention is plain torch; the rest
is imported and never called. A stand-in computes nothing, and an installed package takes precedence over it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ENVIRONMENT = {
    # SGLang's own switch to its CPU mode, read when it is imported.
    "SGLANG_USE_CPU_ENGINE": "1",
    # SGLang marks helpers for torch.compile, which would search for a C++ compiler at their first call.
    "TORCH_COMPILE_DISABLE": "1",
}

INERT = {
    # The compiler of SGLang's GPU kernels, which are defined at import. PyPI has no CPU build under this name.
    "triton",
    # Reads images. PyPI has it built for CUDA; importing it fails without CUDA's libraries, and transformers with it.
    "torchvision",
}


def install() -> None:
    """Prepare this process, and through its environment its children, for `import sglang`. Idempotent.

    Raises:
        RuntimeError: SGLang is already imported.
    """
    os.environ.update(ENVIRONMENT)
    if any(isinstance(finder, _StandIns) for finder in sys.meta_path):
        return
    if "sglang" in sys.modules:
        raise RuntimeError("mcp_rollout.rollout.verl_cpu.sglang_shim must be installed before sglang is imported")
    _cache_real_availability()
    _expose_image_processors()
    # Last, so that it finds only what no other finder has.
    sys.meta_path.append(_StandIns())


def _cache_real_availability() -> None:
    """Let torch and transformers cache that these packages are missing, before the stand-ins exist."""
    importlib.import_module("torch.utils._triton").has_triton_package()
    importlib.import_module("torch._inductor.runtime.triton_compat")
    importlib.import_module("transformers.utils").is_torchvision_available()


def _expose_image_processors() -> None:
    """Export the class that SGLang registers image processors with; transformers hides it without torchvision."""
    name = "AutoImageProcessor"
    module = importlib.import_module("transformers.models.auto.image_processing_auto")
    # Through sys.modules: transformers replaces its own module object there while its parts are imported.
    setattr(sys.modules["transformers"], name, getattr(module, name))


class _StandIns(MetaPathFinder, Loader):
    """Finds stand-ins for `sgl_kernel` and for the packages in `INERT`, submodules included."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_known = fullname == "sgl_kernel" or fullname.partition(".")[0] in INERT
        return ModuleSpec(fullname, self, is_package=True) if is_known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Kernels(spec.name) if spec.name == "sgl_kernel" else _InertModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Inert(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        is_bare_decorator = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if is_bare_decorator else cls


class Anything(metaclass=_Inert):
    """The value of every name in an inert module: a type, a constant, or a decorator with or without arguments.

    A decorated function stays unchanged. A function that triton would have compiled therefore has no launch grid:
    launching it as a kernel raises TypeError instead of computing something else.
    """


class _InertModule(ModuleType):
    # Importers compare it with their minimum version.
    __version__ = "3.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class _Kernels(ModuleType):
    """Stand-in for `sgl_kernel`, SGLang's compiled kernels, which PyPI has for GPUs only."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        # SGLang binds its threads to cores with this operator and logs the result. Here the system schedules them.
        library = importlib.import_module("torch").library.Library("sgl_kernel", "FRAGMENT")
        library.define("init_cpu_threads_env(str cpu_ids) -> str")
        library.impl("init_cpu_threads_env", lambda cpu_ids: cpu_ids, "CompositeExplicitAutograd")
        self.library = library  # the operator exists as long as this object
        self.assign_req_to_token_pool_cpu = assign_req_to_token_pool_cpu

    def __getattr__(self, name: str) -> Any:
        """Return a kernel that raises when called: SGLang imports some for features that a CPU run does not use."""
        if not name.endswith("_cpu"):
            raise AttributeError(name)

        def missing(*_: Any, **__: Any) -> Any:
            raise NotImplementedError(f"sgl_kernel.{name} has no stand-in on a machine without a GPU")

        return missing


def assign_req_to_token_pool_cpu(
    requests: Any,
    pool: Any,
    starts: Any,
    ends: Any,
    locations: Any,
    pool_length: int,
) -> None:
    """Write the locations of each request's new keys and values into its row of the pool.

    Args:
        requests: [requests], each request's row of `pool`.
        pool: [rows, positions], changed in place.
        starts, ends: [requests], bounds of the new positions.
        locations: [sum of ends - starts], request after request.
    """
    offset = 0
    for row, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        pool[row, start:end] = locations[offset : offset + end - start].to(pool.dtype)
        offset += end - start
