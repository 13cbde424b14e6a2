# pyright: basic
"""What SGLang's CPU mode imports from `sgl_kernel`, its compiled kernels, of which PyPI has builds for GPUs only."""

from __future__ import annotations

from typing import Any

import torch

_library = torch.library.Library("sgl_kernel", "FRAGMENT")
# SGLang binds its threads to cores with this operator and logs the answer. Here the system decides where they run.
_library.define("init_cpu_threads_env(str cpu_ids) -> str")
_library.impl("init_cpu_threads_env", lambda cpu_ids: cpu_ids, "CompositeExplicitAutograd")


def assign_req_to_token_pool_cpu(
    requests: torch.Tensor,
    pool: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    locations: torch.Tensor,
    pool_length: int,
) -> None:
    """Write where each request's new keys and values are: `locations`, one request after the other, into its row.

    Args:
        requests: [requests], row of `pool` of each request.
        pool: [rows, positions], changed in place.
        starts, ends: [requests], the positions that are new.
        locations: [sum of ends - starts].
    """
    offset = 0
    for row, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        pool[row, start:end] = locations[offset : offset + end - start].to(pool.dtype)
        offset += end - start


def __getattr__(name: str) -> Any:
    """Kernels that are imported along and belong to what this engine does not do, speculative decoding for one."""
    if not name.endswith("_cpu"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in on a machine without a GPU")

    return missing
