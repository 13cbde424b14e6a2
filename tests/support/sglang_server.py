"""The real SGLang server on this machine's CPU, from the environment of its own that `make sglang` sets up."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]
SGLANG_PYTHON = ROOT / ".venv-sglang" / "bin" / "python"
STARTING_S, ENDING_S = 300.0, 30.0

needs_sglang = pytest.mark.skipif(not SGLANG_PYTHON.exists(), reason="SGLang is not installed: make sglang")


@contextlib.contextmanager
def running_sglang(model: Path, home: Path, *options: str, python: Path = SGLANG_PYTHON) -> Iterator[str]:
    """The address of a server that serves `model` as long as the block lasts.

    Args:
        home: a directory for what it prints (`output.txt`) and its own log of requests, see `requests_logged`.
        options: further arguments of SGLang's server.
        python: the interpreter of an environment that has SGLang.

    Raises:
        RuntimeError: it ended, or did not answer in time; the message ends with what it printed.
    """
    port = _free_port()
    address = f"http://127.0.0.1:{port}"
    logging = ["--log-requests", "--log-requests-level", "3", "--log-requests-format", "json"]
    command = [python, "-m", "rollout.verl_cpu.sglang_server", "--model-path", model, "--port", str(port)]
    command += ["--max-total-tokens", "65536", *logging, "--log-requests-target", home / "requests", *options]
    home.mkdir(parents=True, exist_ok=True)
    with open(home / "output.txt", "wb") as output:
        server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + STARTING_S
        while not _is_healthy(address):
            if server.poll() is not None or time.monotonic() > deadline:
                printed = (home / "output.txt").read_text(errors="replace")
                raise RuntimeError(f"SGLang did not start (status {server.poll()}):\n{printed[-4000:]}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(0.5)
        yield address
    finally:
        _end(server)


def requests_logged(directory: Path) -> list[dict[str, Any]]:
    """What SGLang itself logged of every finished request, in the order of their ends.

    Each is `{request_id, prompt_ids, token_ids, log_probs, finish_reason, sampling_params}`.

    Args:
        directory: SGLang's `--log-requests-target`.
    """
    lines = [line for file in sorted(directory.glob("*.log*")) for line in file.read_text().split("\n") if line]
    events = [json.loads(line[line.index("{") :]) for line in lines]
    return [_finished(event) for event in events if event["event"] == "request.finished"]


def _finished(event: dict[str, Any]) -> dict[str, Any]:
    asked, given = event["obj"], event["out"]
    return {
        "request_id": event["rid"],
        "prompt_ids": asked["input_ids"],
        "token_ids": given["output_ids"],
        "log_probs": [logprob for logprob, _, _ in given["meta_info"].get("output_token_logprobs", [])],
        "finish_reason": given["meta_info"]["finish_reason"],
        "sampling_params": asked["sampling_params"],
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _is_healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=30):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _end(server: subprocess.Popen[bytes]) -> None:
    """SGLang's processes end with the one that started them, but not at once."""
    family = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(server.pid).children(recursive=True)
    server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(ENDING_S)
    server.kill()
    server.wait(ENDING_S)
    for process in psutil.wait_procs(family, timeout=ENDING_S)[1]:
        process.kill()
