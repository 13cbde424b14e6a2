"""The real SGLang server on this machine's CPU, from the environment of its own that `make sglang` sets up."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_server import ROOT, running

SGLANG_PYTHON = ROOT / ".venv-sglang" / "bin" / "python"

needs_sglang = pytest.mark.needs("sglang")


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
    logging = ["--log-requests", "--log-requests-level", "3", "--log-requests-format", "json"]
    logging += ["--log-requests-target", str(home / "requests")]

    def command(port: int) -> list[str]:
        start = [
            str(python),
            "-m",
            "mcp_rollout.rollout.verl_cpu.sglang_server",
            "--model-path",
            str(model),
            "--port",
            str(port),
        ]
        return [*start, "--max-total-tokens", "65536", *logging, *options]

    with running(command, home) as address:
        yield address


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
