"""The CPU engine computes in `rollout.dtype`, with the trainer's weights, which come as float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from verl_config import composed

from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("imported_verl")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_the_engine_computes_in_the_type_that_is_set(dtype: str, tmp_path: Path) -> None:
    from mcp_rollout.rollout.verl_cpu.server import TransformersServer

    path = make_tiny_model(tmp_path, hidden=64, layers=2)
    config = composed(path, "engine=cpu_135m", f"actor_rollout_ref.rollout.dtype={dtype}").actor_rollout_ref
    server = TransformersServer(config.rollout, config.model, 0)
    trained = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    await server.update_weights({name: each.numpy() for name, each in trained.state_dict().items()}, 1)
    prompt = list(range(20, 60))
    made = await server.generate("one", prompt, {"max_tokens": 12, "logprobs": True, "seed": 3})
    with torch.inference_mode():
        own = trained.to(getattr(torch, dtype))(torch.tensor([prompt + made.token_ids])).logits[0].float()
    wanted = own.log_softmax(-1)[len(prompt) - 1 : -1].gather(1, torch.tensor(made.token_ids)[:, None])[:, 0]
    assert made.log_probs is not None
    apart = (torch.tensor(made.log_probs) - wanted).abs().max()
    assert apart < (1e-5 if dtype == "float32" else 0.1)
    assert (server._model.dtype, server._model.device.type) == (getattr(torch, dtype), "cpu")
