"""The real vLLM server on this machine's CPU, from the environment of its own that `make vllm` sets up."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_server import ROOT, running

VLLM = ROOT / ".venv-vllm" / "bin" / "vllm"
_PROMPT = re.compile(r"Request (\S+) details: .*?prompt_token_ids: \[([\d, ]*)\]")

needs_vllm = pytest.mark.needs("vllm")


@contextlib.contextmanager
def running_vllm(model: Path, home: Path, *options: str) -> Iterator[str]:
    """The address of a `vllm serve` of `model` as long as the block lasts.

    Args:
        home: a directory for what it prints (`output.txt`) and what it sends (`answers.jsonl`), see `requests_logged`.
        options: further arguments.
    """
    given = ["--dtype", "float32", "--enforce-eager", "--max-num-seqs", "16", "--enable-log-requests"]
    given += ["--middleware", "vllm_answers.Written", *options]

    def command(port: int) -> list[str]:
        return [str(VLLM), "serve", str(model), "--host", "127.0.0.1", "--port", str(port), *given]

    environ = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parent),
        "VLLM_ANSWERS": str(home / "answers.jsonl"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with running(command, home, environ) as address:
        yield address


def requests_logged(home: Path) -> list[dict[str, Any]]:
    """Every request that vLLM's log has, with what the server sent for it.

    Each is `{prompt_ids, token_ids, log_probs, finish_reason}`: the prompt as its log has it, the rest from the answer.
    """
    printed = (home / "output.txt").read_text(errors="replace")
    prompts = {
        found[1].removesuffix("-0"): [int(each) for each in found[2].split(",")] for found in _PROMPT.finditer(printed)
    }
    lines = (home / "answers.jsonl").read_text().splitlines()
    return [_finished(prompts, pieces) for line in lines if (pieces := _pieces(json.loads(line)))]


def _pieces(body: str) -> list[dict[str, Any]]:
    events = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: {")]
    return [json.loads(event) for event in events]


def _finished(prompts: dict[str, list[int]], pieces: list[dict[str, Any]]) -> dict[str, Any]:
    choices = [choice for piece in pieces for choice in piece.get("choices", ())]
    return {
        "prompt_ids": prompts[pieces[0]["id"]],
        "token_ids": [token for choice in choices for token in choice.get("token_ids") or ()],
        "log_probs": [each for choice in choices for each in (choice["logprobs"] or {}).get("token_logprobs", ())],
        "finish_reason": choices[-1]["finish_reason"],
    }
