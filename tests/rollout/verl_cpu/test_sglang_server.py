"""SGLang's own HTTP server starts on a machine without a GPU, and computes what the model says."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from sglang_server import needs_sglang, requests_logged, running_sglang
from transformers import AutoModelForCausalLM

from rollout.verl_cpu.tiny_model import make_tiny_model

pytestmark = [pytest.mark.full, needs_sglang]

TEMPERATURE = 0.5


@dataclass(frozen=True)
class Server:
    model: Path
    home: Path
    address: str

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=100) as response:
            return json.load(response)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("sglang")
    model = make_tiny_model(home / "model", vocab_size=1024, hidden=64, layers=2)
    with running_sglang(model, home) as address:
        yield Server(model, home, address)
    left = [process for process in psutil.process_iter(["cmdline"]) if str(model) in (process.info["cmdline"] or [])]
    assert left == []


def test_its_logprobs_are_those_of_the_same_model_in_transformers_at_the_temperature_asked_for(server: Server) -> None:
    prompt = [5, 6, 7, 8, 9]
    asked = {"max_new_tokens": 12, "temperature": TEMPERATURE, "ignore_eos": True}
    given = server.post("/generate", {"input_ids": prompt, "sampling_params": asked, "return_logprob": True})
    sampled = torch.tensor(given["output_ids"])
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(server.model).eval()
        logits = model(input_ids=torch.tensor([prompt + given["output_ids"]])).logits[0, len(prompt) - 1 : -1]
    expected = (logits / TEMPERATURE).log_softmax(-1).gather(1, sampled[:, None]).squeeze(1)
    assert len(sampled) == 12
    logprobs = [logprob for logprob, _, _ in given["meta_info"]["output_token_logprobs"]]
    assert logprobs == pytest.approx(expected.tolist(), abs=1e-5)


def test_its_own_log_has_every_token_of_a_request(server: Server) -> None:
    asked = {"max_new_tokens": 4, "temperature": 1.0}
    body = {"rid": "logged", "input_ids": [9, 8, 7], "sampling_params": asked, "return_logprob": True}
    given = server.post("/generate", body)
    [logged] = [entry for entry in requests_logged(server.home / "requests") if entry["request_id"] == "logged"]
    assert logged["prompt_ids"] == [9, 8, 7]
    assert logged["token_ids"] == given["output_ids"]
    assert logged["log_probs"] == [logprob for logprob, _, _ in given["meta_info"]["output_token_logprobs"]]
