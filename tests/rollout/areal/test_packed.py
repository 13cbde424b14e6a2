"""Sequences that AReaL packs into one row are computed as each alone, without a GPU."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mcp_rollout.rollout.areal import cpu


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_packed_sequence_has_the_logits_that_it_has_alone(kind: str) -> None:
    cpu.prepare()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 50}
    config = AutoConfig.for_model(kind, **sizes, num_attention_heads=4, num_key_value_heads=2)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    sequences = [torch.randint(0, 50, (length,)) for length in (7, 1, 12)]
    bounds = torch.tensor([0, 7, 8, 20], dtype=torch.int32)
    # As AReaL's FSDP engine calls the model.
    packed = {
        "input_ids": torch.cat(sequences)[None],
        "position_ids": torch.cat([torch.arange(len(each)) for each in sequences])[None],
        "attention_mask": {"full_attention": None, "sliding_attention": None},
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": 12,
        "max_length_k": 12,
        "use_cache": False,
    }
    with torch.no_grad():
        together = model(**packed).logits[0]
        alone = torch.cat([model(input_ids=each[None]).logits[0] for each in sequences])
    assert torch.allclose(together, alone, atol=1e-5)
    assert not torch.allclose(together[8:], model(input_ids=packed["input_ids"]).logits[0, 8:], atol=1e-3)
