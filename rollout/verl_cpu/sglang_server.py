# pyright: reportMissingImports=false
"""SGLang's own HTTP server on a machine without a GPU, and entry points for the processes that SGLang spawns.

    python -m mcp_rollout.rollout.verl_cpu.sglang_server --model-path MODEL --port PORT [OPTIONS OF SGLANG]

Imports neither verl nor ray: a spawned process imports this module to find its entry point.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from mcp_rollout.rollout.verl_cpu import sglang_shim

# SGLang parallelises by processes, so on few cores each gets one thread. torch reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# At import, not in `main`: a process that SGLang spawns imports this module before it imports SGLang.
sglang_shim.install()

ARGUMENTS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--dtype", "float32"),
    # Overlapping only pays next to a GPU, and a scheduler that polls while idle occupies a core.
    *("--disable-overlap-schedule", "--sleep-on-idle"),
)


def main() -> None:
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    try:
        run_server(prepare_server_args([*ARGUMENTS, *sys.argv[1:]]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def run_scheduler_process(*args: Any, **kwargs: Any) -> None:
    """SGLang's scheduler, in a process that has the shim."""
    from sglang.srt.managers.scheduler import run_scheduler_process as run

    run(*args, **kwargs)


def run_detokenizer_process(*args: Any, **kwargs: Any) -> None:
    """SGLang's detokenizer, in a process that has the shim."""
    from sglang.srt.managers.detokenizer_manager import run_detokenizer_process as run

    run(*args, **kwargs)


if __name__ == "__main__":
    main()
