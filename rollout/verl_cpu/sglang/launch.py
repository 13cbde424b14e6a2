# pyright: reportMissingImports=false
"""SGLang's own HTTP server on a machine without a GPU.

python -m rollout.verl_cpu.sglang.launch --model-path MODEL --port PORT [any option of sglang.launch_server]
"""

from __future__ import annotations

import os
import sys

from rollout.verl_cpu.sglang import shim

# SGLang's processes are what runs in parallel on few cores. torch reads this as it is imported, here and there.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# At import, not in `main`: SGLang spawns its processes, and a spawned process imports this module before anything else.
shim.install()

ARGUMENTS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--dtype", "float32"),
    # There is no GPU to schedule the next batch beside, and a scheduler that polls while idle takes a core.
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


if __name__ == "__main__":
    main()
