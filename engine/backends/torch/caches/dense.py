"""All keys and values in a floating type, one row per token."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from engine.backends.torch.caches.base import (
    CacheConfig,
    KVCache,
    KVState,
    LayerShape,
    check_capacity,
    check_crop,
)
from engine.backends.torch.caches.saved import fill

KEYS, VALUES = "dense keys", "dense values"
"""Names of the saved tensors `[batch, n_kv_heads, n_tokens, head_dim]`."""


class DenseCache(KVCache):
    """Rows for `n_ctx` tokens, which can be cropped to any length.

    Reading returns views if the type is that of the attention.
    """

    length = 0

    def __init__(
        self, shape: LayerShape, config: CacheConfig, dtype_k: torch.dtype, dtype_v: torch.dtype
    ) -> None:
        rows = (config.n_batch, shape.n_kv_heads, config.n_ctx)
        # Masked rows are multiplied too, so they must be finite.
        self._keys = torch.zeros((*rows, shape.k_head_dim), dtype=dtype_k, device=config.device)
        self._values = torch.zeros((*rows, shape.v_head_dim), dtype=dtype_v, device=config.device)
        self._config = config

    def tensors(self) -> Iterable[Tensor]:
        return self._keys, self._values

    def update(self, keys: Tensor, values: Tensor) -> KVState:
        start, n_new = self.length, keys.shape[2]
        check_capacity(start, n_new, self._config.n_ctx)
        self._keys[:, :, start : start + n_new] = keys
        self._values[:, :, start : start + n_new] = values
        self.length += n_new
        return self.state()

    def put(self, keys: Tensor, values: Tensor, at: Tensor, n_rows: int) -> KVState:
        """Write tokens and return the first rows; shapes do not depend on the length.

        The caller updates `length`, so that a CUDA graph can contain this call.

        Args:
            keys: `[batch, n_kv_heads, n_new, k_head_dim]`
            values: `[batch, n_kv_heads, n_new, v_head_dim]`
            at: `[n_new]` int64 positions within the capacity.
            n_rows: Number of returned rows, filled or not.
        """
        self._keys.index_copy_(2, at, keys.to(self._keys.dtype))
        self._values.index_copy_(2, at, values.to(self._values.dtype))
        return self._state(n_rows)

    def state(self) -> KVState:
        return self._state(self.length)

    def _state(self, n_rows: int) -> KVState:
        dtype = self._config.dtype
        return KVState(
            self._keys[:, :, :n_rows].to(dtype),
            self._values[:, :, :n_rows].to(dtype),
            torch.arange(n_rows, device=self._config.device),
        )

    def crop(self, length: int) -> None:
        check_crop(self, length)
        self.length = length

    def held(self) -> dict[str, Tensor]:
        n = self.length
        return {KEYS: self._keys[:, :, :n], VALUES: self._values[:, :, :n]}

    def hold(self, found: Mapping[str, Tensor], length: int) -> None:
        check_capacity(0, length, self._config.n_ctx)
        self.length = length
        fill(self.held(), found)
