"""The stand-ins that let SGLang be imported without a GPU, and that torch and transformers do not detect."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from mcp_rollout.rollout.verl_cpu.sglang_shim import assign_req_to_token_pool_cpu


def python(program: str, **environment: str) -> list[str]:
    """Lines of a fresh interpreter's output; what is installed, is installed for the whole process."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("VERL_", "SGLANG_", "TORCH_"))}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, env=clean | environment, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.splitlines()


STAND_INS = """
from mcp_rollout.rollout.verl_cpu import sglang_shim
sglang_shim.install()
sglang_shim.install()

import triton
import triton.language as tl
from torchvision.io import decode_jpeg
import sgl_kernel

@triton.autotune(configs=[triton.Config({"BLOCK": 2})], key=["n"])
@triton.jit
def kernel(x, n: tl.constexpr): return 7

print(kernel(1, 2))
try:
    kernel[(1,)](1, 2)
except TypeError as error:
    print(error)
try:
    sgl_kernel.verify_tree_greedy_cpu()
except NotImplementedError as error:
    print(error)

import os, torch
from torch.utils._triton import has_triton_package
from transformers.utils import is_torchvision_available
print(has_triton_package(), is_torchvision_available(), torch.ops.sgl_kernel.init_cpu_threads_env("0"))
print(os.environ["SGLANG_USE_CPU_ENGINE"])
"""


def test_a_kernel_for_gpus_is_defined_but_cannot_be_launched_and_torch_knows_no_triton() -> None:
    assert python(STAND_INS) == [
        "7",
        "'function' object is not subscriptable",
        "sgl_kernel.verify_tree_greedy_cpu has no stand-in on a machine without a GPU",
        "False False 0",
        "1",
    ]


@pytest.mark.full
def test_processes_that_sglang_spawns_never_import_verl() -> None:
    program = "import sys, mcp_rollout.rollout.verl_cpu.sglang_server; print({'ray', 'verl'} & set(sys.modules))"
    assert python(program) == ["set()"]


def test_it_refuses_to_come_after_sglang() -> None:
    program = "import sys; sys.modules['sglang'] = sys; from mcp_rollout.rollout.verl_cpu.sglang_shim import install\n"
    program += "try: install()\nexcept RuntimeError as error: print(error)"
    assert python(program) == ["mcp_rollout.rollout.verl_cpu.sglang_shim must be installed before sglang is imported"]


def test_new_keys_and_values_are_written_to_each_requests_own_row() -> None:
    pool = torch.zeros(3, 5, dtype=torch.int32)
    starts, ends = torch.tensor([1, 0]), torch.tensor([3, 4])
    assign_req_to_token_pool_cpu(torch.tensor([2, 0]), pool, starts, ends, torch.arange(11, 17), pool.shape[1])
    assert pool.tolist() == [[13, 14, 15, 16, 0], [0] * 5, [0, 11, 12, 0, 0]]
