"""AReaL's trainer on this CPU, as a user starts it, in the environment of its own that `make sglang` sets up."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AREAL_PYTHON = ROOT / ".venv-sglang" / "bin" / "python"

needs_areal = pytest.mark.needs("sglang")


def train_areal(
    home: Path,
    overrides: Mapping[str, object],
    *,
    server: str | None = None,
    module: str = "mcp_rollout.rollout.areal.train",
    timeout_s: float = 900,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """The finished run, whatever its status; its output and errors are one text.

    Args:
        server: `host:port` of the inference server for one process per rank; None for a single controller, which
            starts a server of its own.
        module: what is run instead of the library's entry point.
    """
    modes = {} if server is None else one_rank(server)
    path = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [AREAL_PYTHON, "-m", module, "--config", "configs/areal/cpu.yaml"]
    command += [f"{key}={value}" for key, value in {"cluster.fileroot": home, **overrides}.items()]
    variables = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **environment}
    # A single controller starts `python -m ...`.
    variables["PATH"] = os.pathsep.join([str(AREAL_PYTHON.parent), os.environ["PATH"]])
    log = home / "train.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | variables | modes | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        status = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
    return subprocess.CompletedProcess(command, status, log.read_text(errors="replace"))


def one_rank(server: str) -> dict[str, str]:
    """Environment variables of AReaL's mode with one process per rank."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {"AREAL_SPMD_MODE": "1", "AREAL_LLM_SERVER_ADDRS": server, **ranks}
