"""SGLang's own HTTP server starts on a machine without a GPU, and computes what the model says."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from sglang_server import needs_sglang, requests_logged, running_sglang
from transformers import AutoModelForCausalLM

from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

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
            return json.loads(response.read() or "null")


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


def test_what_is_aborted_does_not_say_that_its_last_token_ends_it(server: Server) -> None:
    """Why the client of the asynchronous modes looks at that token: else it would resume a turn behind its end."""
    stops = list(range(64, 900))  # nearly any token, as soon as there may be one
    asked = [{"max_new_tokens": 200, "min_new_tokens": each // 4, "stop_token_ids": stops} for each in range(128)]
    with ThreadPoolExecutor(len(asked)) as pool:
        bodies = [{"input_ids": [9, 8, 7], "sampling_params": each, "return_logprob": True} for each in asked]
        given = [pool.submit(server.post, "/generate", body) for body in bodies]
        assert len(list(islice(as_completed(given), 32))) == 32
        server.post("/abort_request", {"abort_all": True})
        ended = [each.result() for each in given]
    cut = [each["output_ids"] for each in ended if each["meta_info"]["finish_reason"]["type"] == "abort"]
    assert any(ids[-1] in stops for ids in cut if ids)
