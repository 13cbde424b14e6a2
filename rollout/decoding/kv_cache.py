# pyright: basic
"""The key-value cache of many sequences in one set of buffers, one slot per sequence."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, CacheLayerMixin


class _Layer(CacheLayerMixin):
    """One model layer's buffers [slots, heads, positions, head_dim], of which a forward pass uses some slots."""

    is_sliding = False

    def __init__(self, cache: KVCache) -> None:
        super().__init__()
        self._cache = cache
        self.is_initialized = True

    def resize(
        self, slots: int, positions: int, heads: int, head_dim: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        for name in ("keys", "values"):
            old: torch.Tensor | None = getattr(self, name)
            # Zeros, not `empty`: attention multiplies masked positions by 0, and 0 times an uninitialised NaN is NaN.
            new = torch.zeros(slots, heads, positions, head_dim, dtype=dtype, device=device)
            if old is not None:
                new[: old.shape[0], :, : old.shape[2]] = old
            setattr(self, name, new)

    def copy(self, source: int, target: int, length: int) -> None:
        for buffer in (self.keys, self.values):
            assert buffer is not None
            buffer[target, :, :length] = buffer[source, :, :length]

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: `KVCache.grow` allocates."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.keys is not None and self.values is not None
        slots, positions, length = self._cache.slots, self._cache.positions, self._cache.length
        rows = torch.arange(key_states.shape[0], device=key_states.device)[:, None]
        keys, values = self.keys[slots], self.values[slots]
        keys[rows, :, positions] = key_states.transpose(1, 2)
        values[rows, :, positions] = value_states.transpose(1, 2)
        return keys[:, :, :length], values[:, :, :length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.length, 0

    def get_seq_length(self) -> int:
        return self._cache.length - self._cache.positions.shape[1]

    def get_max_cache_shape(self) -> int:
        return -1


class KVCache:
    """A key-value cache addressed by slot, which grows as sequences do. The caller knows which slot holds what."""

    slots: slice
    """The slots of the current forward pass."""
    positions: torch.Tensor
    """Where each row's new tokens go.  # [rows, new tokens]"""
    length: int
    """Positions in use in the current forward pass."""

    def __init__(self, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        """Raises ValueError: a layer does not attend to its whole past, which then cannot be kept in slots."""
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise ValueError(f"only full-attention models can be decoded here; this one has layers {sorted(kinds)}")
        heads: int = config.num_attention_heads
        self._kv_heads: int = getattr(config, "num_key_value_heads", None) or heads
        self._head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        self._dtype, self._device = dtype, device
        self._size = (0, 0)
        self._layers = [_Layer(self) for _ in range(config.num_hidden_layers)]
        self._cache = Cache(layers=list(self._layers))

    def grow(self, slots: int, positions: int) -> None:
        """Make room for `slots` sequences of `positions` tokens; sizes double, so that growing is rare."""
        if slots <= self._size[0] and positions <= self._size[1]:
            return
        self._size = (max(self._size[0], _power_of_two(slots)), max(self._size[1], _power_of_two(positions)))
        for layer in self._layers:
            layer.resize(*self._size, self._kv_heads, self._head_dim, self._dtype, self._device)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        for layer in self._layers:
            layer.copy(source, target, length)

    def at(self, slots: slice, positions: torch.Tensor) -> Cache:
        """The cache for one forward pass over `slots`, writing each row's new tokens at `positions` [rows, tokens]."""
        self.slots, self.positions, self.length = slots, positions, int(positions.max()) + 1
        return self._cache


def _power_of_two(wanted: int) -> int:
    """The smallest power of two that is at least `wanted`."""
    return 1 << (wanted - 1).bit_length()
