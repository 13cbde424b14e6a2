"""Makes SGLang 0.5.18 importable without a GPU. Every stand-in has its reason; none computes what it stands for.

SGLang has a CPU mode, but imports unconditionally what exists for GPUs only. What its `torch_native` attention needs is
plain torch; the rest is imported and not called. A real package that is installed comes first.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

ENVIRONMENT = {
    # SGLang's own switch to its CPU mode, read as it is imported.
    "SGLANG_USE_CPU_ENGINE": "1",
    # SGLang marks helpers for torch.compile, which would look for a C++ compiler when they are first called.
    "TORCH_COMPILE_DISABLE": "1",
}

INERT = {
    # The compiler of SGLang's GPU kernels, which are defined as it is imported. Its CPU build is no package of its own.
    "triton",
    # Reads images. PyPI has it built for CUDA; without CUDA's libraries importing it fails, and transformers with it.
    "torchvision",
}


def install() -> None:
    """Prepare this process for `import sglang`, and what it starts through its environment. Safe to repeat.

    Raises:
        RuntimeError: SGLang is imported already.
    """
    os.environ.update(ENVIRONMENT)
    if any(isinstance(finder, _StandIns) for finder in sys.meta_path):
        return
    if "sglang" in sys.modules:
        raise RuntimeError("rollout.verl_cpu.sglang.shim must be installed before sglang is imported")
    _let_others_find_out()
    _offer_image_processors()
    # The last finder: only asked for what nobody else has.
    sys.meta_path.append(_StandIns())


def _let_others_find_out() -> None:
    """torch and transformers look for these packages too, and keep the answer: it is to be that there is none."""
    importlib.import_module("torch.utils._triton").has_triton_package()
    importlib.import_module("torch._inductor.runtime.triton_compat")
    importlib.import_module("transformers.utils").is_torchvision_available()


def _offer_image_processors() -> None:
    """SGLang registers its image processors with a class of transformers that hides where torchvision is missing."""
    name = "AutoImageProcessor"
    module = importlib.import_module("transformers.models.auto.image_processing_auto")
    # By its name in sys.modules: transformers puts another module there while its parts are imported.
    setattr(sys.modules["transformers"], name, getattr(module, name))


class _StandIns(MetaPathFinder, Loader):
    """Finds stand-ins for `sgl_kernel` and for what is in `INERT`, submodules included."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in INERT:
            return ModuleSpec(fullname, self, is_package=True)
        if fullname == "sgl_kernel":
            return spec_from_file_location(fullname, Path(__file__).with_name("kernels.py"))
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _InertModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Inert(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        bare = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if bare else cls


class Anything(metaclass=_Inert):
    """What every name in an inert module stands for: a type, a constant, a decorator, with arguments or without.

    A function decorated with it stays what it is. One that triton would have compiled has no launch grid then:
    called as a kernel it raises TypeError, rather than computing something else.
    """


class _InertModule(ModuleType):
    # Importers compare it with what they need.
    __version__ = "3.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything
