# pyright: basic
"""CPU time of decode steps with keys and values read once by the heads that share them, against transformers' `sdpa`.

    OMP_NUM_THREADS=1 python -m lab.benchmarks.grouped_decoding [--sequences 32] [--prompt 128] [--steps 40]

A random model of the shape of SmolLM2-135M (9 query heads, 3 key-value heads), the same in both; steps take turns.
Prints the tokens of each per second of CPU, their ratio, and the largest difference of log-probabilities.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mcp_rollout.rollout.decoding.batch import ContinuousBatch, Request
from mcp_rollout.rollout.decoding.sampling import Sampling


def made(name: str | None, options: argparse.Namespace) -> tuple[ContinuousBatch, list[Request]]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).to(getattr(torch, options.dtype)).eval()
    batch = ContinuousBatch(model, max_sequences=options.sequences)
    if name is not None:
        model.set_attn_implementation(name)
    prompt = torch.randint(100, 40000, (options.prompt,)).tolist()
    requests = [
        Request(
            request_id=str(number),
            prompt_ids=prompt,
            sampling=Sampling(logprobs=True),
            max_tokens=options.steps + 1,
            stop_ids=frozenset(),
            seed=number,
        )
        for number in range(options.sequences)
    ]
    for request in requests:
        batch.add(request)
    batch.step()
    return batch, requests


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    grouped, repeated = made(None, options), made("sdpa", options)
    spent = [0.0, 0.0]
    for _ in range(options.steps):
        for which, (batch, _) in enumerate((grouped, repeated)):
            began = time.process_time()
            batch.step()
            spent[which] += time.process_time() - began
    tokens = options.steps * options.sequences
    same = [(one, other) for one, other in zip(grouped[1], repeated[1], strict=True) if one.ids == other.ids]
    apart = [abs(a - b) for one, other in same for a, b in zip(one.logprobs, other.logprobs, strict=True)]
    sys.stdout.write(
        f"{options.dtype}: {tokens / spent[0]:.0f} and {tokens / spent[1]:.0f} tokens a second of CPU, "
        f"{spent[1] / spent[0]:.2f} times faster; {len(same)} of {options.sequences} sequences equal, "
        f"log-probabilities {max(apart, default=0):.1e} apart\n"
    )


if __name__ == "__main__":
    main()
