# pyright: basic
"""Attention that reads keys and values once for all query heads that share them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "sdpa_grouped"


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' `sdpa`; but where each row has one new token, the query heads of a group are its queries.

    With a mask, transformers copies all keys and values for each query head, which takes longer than the attention.

    Args:
        query: [rows, heads, new tokens, width].
        key: [rows, groups, positions, width].
        value: the same.
        attention_mask: equal for all heads.  # bool [rows, 1, new tokens, positions]
    """
    rows, heads, new, _ = query.shape
    groups = key.shape[1]
    if new > 1 or heads == groups:
        passed = {"dropout": dropout, "scaling": scaling, **options}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **passed)
    attended = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(rows, groups, heads // groups, -1), key, value, attn_mask=attention_mask, scale=scaling
    )
    return attended.reshape(rows, 1, heads, -1), None


def group_heads(model: PreTrainedModel) -> None:
    """Let a model that attends by `sdpa` attend by `grouped_attention`."""
    if model.config._attn_implementation != "sdpa":
        return
    AttentionInterface.register(NAME, grouped_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
