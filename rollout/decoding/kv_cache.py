# pyright: basic
"""Keys and values of many sequences in one set of buffers, one slot a sequence."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, CacheLayerMixin


class _Layer(CacheLayerMixin):
    """One model layer's buffers [slots, heads, positions, head_dim], seen through the current window."""

    is_sliding = False

    def __init__(self, cache: SlotCache) -> None:
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
        """Nothing to do: `SlotCache.grow` allocates."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.keys is not None and self.values is not None
        window = self._cache.window
        rows = torch.arange(key_states.shape[0], device=key_states.device)[:, None]
        keys, values = self.keys[window.slots], self.values[window.slots]
        keys[rows, :, window.positions] = key_states.transpose(1, 2)
        values[rows, :, window.positions] = value_states.transpose(1, 2)
        return keys[:, :, : window.length], values[:, :, : window.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.window.length, 0

    def get_seq_length(self) -> int:
        window = self._cache.window
        return window.length - window.positions.shape[1]

    def get_max_cache_shape(self) -> int:
        return -1


class _Window:
    """Which slots the next forward pass works on, and where each row's new tokens go."""

    def __init__(self, slots: slice, positions: torch.Tensor) -> None:
        self.slots = slots
        self.positions = positions  # [rows, new tokens]
        self.length = int(positions.max()) + 1


class SlotCache:
    """A key-value cache addressed by slot, which grows as sequences do. Keeps nothing about which slot holds what."""

    window: _Window

    def __init__(self, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        """Raises:
        ValueError: a layer of the model does not attend to its whole past; its past cannot be kept in slots.
        """
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise ValueError(f"full-attention models only are decoded here, this one has layers {sorted(kinds)}")
        heads: int = config.num_attention_heads
        self._kv_heads: int = getattr(config, "num_key_value_heads", None) or heads
        self._head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        self._dtype, self._device = dtype, device
        self._size = (0, 0)
        self._layers = [_Layer(self) for _ in range(config.num_hidden_layers)]
        self._cache = Cache(layers=list(self._layers))

    def grow(self, slots: int, positions: int) -> None:
        """Make room for `slots` sequences of `positions` tokens; sizes double, so that growing stays rare."""
        if slots <= self._size[0] and positions <= self._size[1]:
            return
        self._size = (_doubled(self._size[0], slots), _doubled(self._size[1], positions))
        for layer in self._layers:
            layer.resize(*self._size, self._kv_heads, self._head_dim, self._dtype, self._device)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        for layer in self._layers:
            layer.copy(source, target, length)

    def at(self, slots: slice, positions: torch.Tensor) -> Cache:
        """The cache for one forward pass over `slots`, writing each row's new tokens at `positions` [rows, tokens]."""
        self.window = _Window(slots, positions)
        return self._cache


def _doubled(size: int, wanted: int) -> int:
    size = max(size, 1)
    while size < wanted:
        size *= 2
    return size
