"""The models as in their papers: Llama and similar ones, Qwen 2 and 3, Gemma 3, Mamba.

Touvron et al. 2023 (arXiv 2302.13971): RMSNorm before each block (Zhang and Sennrich 2019, arXiv
1910.07467), rotary positions (Su et al. 2021, arXiv 2104.09864), a gated feed-forward block
(Shazeer 2020, arXiv 2002.05202). Queries share key heads (Ainslie et al. 2023, arXiv 2305.13245).
Qwen 3 and Gemma 3 normalise queries and keys (arXiv 2505.09388, 2503.19786); Gemma 3 normalises the
output of a block too, and most of its layers have a sliding window. Mamba (Gu and Dao 2023, arXiv
2312.00752) has a state instead of keys and values.

Shapes: `batch` sequences of equal length, `n` tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.backends.torch.caches.base import KVCache, KVState, LayerCache, storage_bytes
from engine.backends.torch.caches.recurrent import RecurrentCache
from engine.backends.torch.decode_plan import DecodePlan, chunks
from engine.backends.torch.hyperparameters import (
    Activation,
    AttentionShape,
    Hyperparameters,
    RopeShape,
    StateSpaceShape,
)

Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values, `[batch, n, heads, head_dim]` each."""
MAX_SINGLE_ROWS = 8
"""Rows that are multiplied one by one with float16 weights on a CPU."""
MAX_SPLIT_ROWS = 256
"""Rows of queries that read the keys in parallel on CUDA."""


@dataclass(frozen=True, slots=True)
class Linear:
    """`x @ weight.T + bias`; weight is `[outputs, inputs]`."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        is_half = self.weight.dtype == torch.float16 and self.weight.device.type == "cpu"
        if is_half and x.shape[:-1].numel() > 1:
            return self._half(x)
        return functional.linear(x, self.weight, self.bias)

    def _half(self, x: Tensor) -> Tensor:
        """Multiply a few rows one by one, more in float32.

        torch 2.13 multiplies one float16 row at 27 to 36 GB/s (one thread of an EPYC with AVX-512;
        10 to 15 in float32 and bfloat16), but several rows at a fifth of the speed of float32.
        """
        rows = x.reshape(-1, x.shape[-1])
        if rows.shape[0] <= MAX_SINGLE_ROWS:
            found = torch.stack([functional.linear(row, self.weight, self.bias) for row in rows])
        else:
            bias = None if self.bias is None else self.bias.float()
            found = functional.linear(rows.float(), self.weight.float(), bias).to(x.dtype)
        return found.view(*x.shape[:-1], -1)


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """x divided by the root of its mean square, times a learned gain."""

    gain: Tensor
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.gain.shape, self.gain, self.epsilon)


class Rope:
    """Rotary positions: rotates each pair of a head's elements in proportion to the position.

    Args:
        shape: Base and scale of the angles.
        head_dim: Elements of a head; pair i rotates by `base ** (-2 i / head_dim)` per position.
        factors: `[head_dim / 2]` divisors of the angles (Llama 3.1).
    """

    def __init__(self, shape: RopeShape, head_dim: int, factors: Tensor | None) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
        angles = shape.scale * shape.base**-exponents
        self._angles = angles if factors is None else angles / factors.to(angles)

    def cos_sin(self, positions: Tensor) -> Tensor:
        """Cosine and sine of each angle at positions, `[n, 1, head_dim / 2, 2]` float32."""
        angles = positions.to("cpu", torch.float64)[:, None, None] * self._angles
        return torch.stack((angles.cos(), angles.sin()), -1).to(positions.device, torch.float32)


def rotate(heads: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotate heads `[batch, n, heads, head_dim]`, whose pairs are adjacent elements."""
    pairs = heads.float().reshape(*heads.shape[:-1], -1, 2)
    if torch.compiler.is_compiling():  # the compiler does not support complex numbers
        (x, y), (cos, sin) = pairs.unbind(-1), cos_sin.unbind(-1)
        rotated = torch.stack((x * cos - y * sin, x * sin + y * cos), -1)
    else:
        rotated = torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(cos_sin))
    return rotated.flatten(-2).to(heads.dtype)


class ForwardPass:
    """State that the layers share in one forward pass: caches, positions, rotations and masks.

    Args:
        caches: One cache per layer.
        n_tokens: Number of new tokens.
        n_rows: How many of the last tokens get logits.
        device: Device of the model.
        plan: Chunks and windows of attention; None is one chunk without further windows.
    """

    def __init__(
        self,
        caches: Sequence[LayerCache],
        n_tokens: int,
        n_rows: int,
        device: torch.device,
        plan: DecodePlan | None = None,
    ) -> None:
        self.caches, self.n_rows, self._plan = caches, n_rows, plan
        self._start = caches[0].length
        self.positions = torch.arange(self._start, self._start + n_tokens, device=device)
        """`[n_tokens]` int64"""
        self._cos_sin: dict[Rope, Tensor] = {}
        self._masks: dict[int | None, tuple[Tensor, Tensor]] = {}

    def cos_sin(self, rope: Rope) -> Tensor:
        """Rotations of all tokens, `[n, 1, head_dim / 2, 2]`."""
        if rope not in self._cos_sin:
            self._cos_sin[rope] = rope.cos_sin(self.positions)
        return self._cos_sin[rope]

    def attend(self, layer: int, shape: AttentionShape, heads: Heads) -> Tensor:
        """Append keys and values to a layer's cache; return `[batch, n, n_heads * head_dim]`."""
        queries, keys, values = heads
        cache = self.caches[layer]
        assert isinstance(cache, KVCache)
        held = self.append(cache, keys.transpose(1, 2), values.transpose(1, 2))
        if self._plan is None:
            return attend(queries, held, self.mask(held, shape.cache.window), shape.scale)
        parts = []
        for rows, window in chunks(self._plan, self._start, queries.shape[1]):
            windows = (each for each in (shape.cache.window, window) if each is not None)
            mask = held.mask(self.positions[rows], min(windows, default=None))
            parts.append(attend(queries[:, rows], held, mask, shape.scale))
        return torch.cat(parts, dim=1)

    def append(self, cache: KVCache, keys: Tensor, values: Tensor) -> KVState:
        """Append keys and values `[batch, n_kv_heads, n, head_dim]` to a cache."""
        return cache.update(keys, values)

    def mask(self, held: KVState, window: int | None) -> Tensor | None:
        """`[n_tokens, n_entries]` bool: what the tokens see; None if all see all."""
        queries, n_entries = self.positions, held.positions.shape[0]
        if held.seen is not None:
            return held.mask(queries, window)
        is_whole = queries.shape[0] == 1 and n_entries == self.caches[0].length
        if is_whole and (window is None or n_entries <= window):
            return None
        known = self._masks.get(window)
        if known is None or not torch.equal(known[0], held.positions):
            known = self._masks[window] = held.positions, held.mask(queries, window)
        return known[1]


def attend(queries: Tensor, held: KVState, mask: Tensor | None, scale: float | Tensor) -> Tensor:
    """Scaled dot-product attention.

    Queries that share a key head become further rows, so that keys and values are not repeated.

    Args:
        queries: `[batch, n, n_heads, head_dim]`
        held: Keys and values.
        mask: `[n, n_entries]` bool, None if all is seen.
        scale: Factor of the scores, or `[head_dim]` factors of the queries (`part_scales`).

    Returns:
        `[batch, n, n_heads * head_dim]`
    """
    batch, n, n_heads, head_dim = queries.shape
    if isinstance(scale, Tensor):
        queries, scale = queries * scale, 1.0
    keys, values, n_kv = held.keys, held.values, held.keys.shape[1]
    shared = n_heads // n_kv
    rows = queries.view(batch, n, n_kv, shared, head_dim).permute(0, 2, 3, 1, 4)
    rows = rows.reshape(batch, n_kv, shared * n, head_dim)
    if mask is not None and shared > 1:
        mask = mask.repeat(shared, 1)
    if rows.dtype == torch.float16 and rows.device.type == "cpu":
        # A third to a quarter of the time, conversions included (torch 2.13, 200 to 4,000 tokens).
        rows, keys, values = rows.float(), keys.float(), values.float()
    if rows.device.type == "cuda" and rows.shape[2] <= MAX_SPLIT_ROWS:
        read = attend_split(rows, keys, values, mask, scale)
    else:
        read = functional.scaled_dot_product_attention(rows, keys, values, mask, scale=scale)
    read = read.to(queries.dtype).view(batch, n_kv, shared, n, -1).permute(0, 3, 1, 2, 4)
    return read.reshape(batch, n, -1)


def attend_split(
    rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Attention of few rows on CUDA, as products that are parallel over the keys.

    torch's kernels read the keys of a head sequentially, on few multiprocessors: 157 us for 4,096
    tokens and 660 us for 16,384, instead of 24 and 57 us (torch 2.11, H100, 8 key heads of 128,
    bfloat16). Arguments as of `scaled_dot_product_attention`: `[batch, n_kv_heads, n, head_dim]`.
    """
    queries, transposed = rows.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2)
    if rows.dtype == torch.float32:
        scores = torch.bmm(queries, transposed)
    else:
        scores = torch.bmm(queries, transposed, out_dtype=torch.float32)
    scores = scores * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(-1).to(values.dtype)
    return torch.bmm(weights, values.flatten(0, 1)).view(*rows.shape[:3], -1)


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention over a cache."""

    shape: AttentionShape
    rope: Rope
    qkv: Linear
    """All heads of queries, then those of keys, then those of values."""
    out: Linear
    q_norm: RMSNorm | None = None
    k_norm: RMSNorm | None = None

    def __call__(self, x: Tensor, forward: ForwardPass, layer: int) -> Tensor:
        n_heads, n_kv = self.shape.n_heads, self.shape.cache.n_kv_heads
        heads = self.qkv(x).view(*x.shape[:2], -1, self.shape.cache.k_head_dim)
        queries_keys, values = heads[:, :, : n_heads + n_kv], heads[:, :, n_heads + n_kv :]
        rotated = rotate(self._normed(queries_keys), forward.cos_sin(self.rope))
        qkv = rotated[:, :, :n_heads], rotated[:, :, n_heads:], values
        return self.out(forward.attend(layer, self.shape, qkv))

    def _normed(self, heads: Tensor) -> Tensor:
        if self.q_norm is None or self.k_norm is None:
            return heads
        n_heads = self.shape.n_heads
        queries, keys = heads[:, :, :n_heads], heads[:, :, n_heads:]
        return torch.cat((self.q_norm(queries), self.k_norm(keys)), dim=2)


@dataclass(frozen=True, slots=True)
class FeedForward:
    """`down(activation(gate(x)) * up(x))`; gate and up are one matrix."""

    gate_up: Linear
    down: Linear
    activation: Activation

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        if self.activation == "silu":
            return self.down(functional.silu(gate) * up)
        return self.down(functional.gelu(gate, approximate="tanh") * up)


@dataclass(frozen=True, slots=True)
class TransformerBlock:
    """Attention, then a feed-forward block, each beside a residual stream."""

    attention_norm: RMSNorm
    attention: Attention
    feed_forward_norm: RMSNorm
    feed_forward: FeedForward
    attention_post_norm: RMSNorm | None = None
    """Norm of the attention's output (Gemma 3)."""
    feed_forward_post_norm: RMSNorm | None = None

    def __call__(self, x: Tensor, forward: ForwardPass, layer: int) -> Tensor:
        read = self.attention(self.attention_norm(x), forward, layer)
        x = x + (read if self.attention_post_norm is None else self.attention_post_norm(read))
        fed = self.feed_forward(self.feed_forward_norm(x))
        return x + (
            fed if self.feed_forward_post_norm is None else self.feed_forward_post_norm(fed)
        )


@dataclass(frozen=True, slots=True)
class StateSpace:
    """A selective state space: what a token writes to the state and reads from it depends on it.

    Algorithm 2 of the paper, one token after the other; `A` in the file is already negative. The
    recurrence is computed in float32 and continues from the state as the cache stores it.
    """

    shape: StateSpaceShape
    inputs: Linear
    """To the convolution's inputs, then to the gate."""
    convolution: Tensor
    """`[d_inner, d_conv]`, the newest token last."""
    convolution_bias: Tensor
    selection: Linear
    """To dt, B and C."""
    time_step: Linear
    decay: Tensor
    """A, `[d_inner, d_state]` float32, negative."""
    skip: Tensor
    """D, `[d_inner]` float32."""
    out: Linear

    def __call__(self, x: Tensor, forward: ForwardPass, layer: int) -> Tensor:
        inner, gate = self.inputs(x).chunk(2, dim=-1)
        cache = forward.caches[layer]
        assert isinstance(cache, RecurrentCache)
        return self.out(self._scan(inner, cache) * functional.silu(gate))

    def _scan(self, inner: Tensor, cache: RecurrentCache) -> Tensor:
        """The state space's output, `[batch, n, d_inner]`."""
        n_past = self.shape.d_conv - 1
        convolved, hidden = cache.state()
        new = inner.transpose(1, 2).to(convolved.dtype)
        inputs = torch.cat((convolved, new), dim=2).to(inner.dtype)
        windows = inputs.unfold(2, self.shape.d_conv, 1)
        x = (windows * self.convolution[:, None]).sum(-1).transpose(1, 2)
        x = functional.silu(x + self.convolution_bias)
        sizes = [self.shape.dt_rank, self.shape.d_state, self.shape.d_state]
        dt, b, c = self.selection(x).split(sizes, dim=-1)
        step = functional.softplus(self.time_step(dt).float())
        retained = torch.exp(step[..., None] * self.decay)
        added = (step * x.float())[..., None] * b.float()[:, :, None]
        read = []
        for token in range(inner.shape[1]):
            hidden = retained[:, token] * hidden.float() + added[:, token]
            cache.update((inputs[:, :, token + 1 : token + 1 + n_past], hidden))
            _, hidden = cache.state()
            read.append((hidden * c.float()[:, token, None]).sum(-1))
        return (torch.stack(read, dim=1) + self.skip * x.float()).to(inner.dtype)


@dataclass(frozen=True, slots=True)
class StateSpaceBlock:
    """A state space beside a residual stream."""

    norm: RMSNorm
    mixer: StateSpace

    def __call__(self, x: Tensor, forward: ForwardPass, layer: int) -> Tensor:
        return x + self.mixer(self.norm(x), forward, layer)


@dataclass(frozen=True, slots=True)
class Transformer:
    """Embeddings, blocks, and the logits of the next token."""

    shape: Hyperparameters
    embeddings: Tensor
    """`[n_vocab, d_hidden]`"""
    embedding_scale: float
    blocks: tuple[TransformerBlock | StateSpaceBlock, ...]
    norm: RMSNorm
    output: Linear
    check: Callable[[], None]
    """Called before each layer; an exception ends the forward pass."""

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.embeddings.device

    @property
    def nbytes(self) -> int:
        """Bytes of the weights; shared ones count once."""
        return storage_bytes(_tensors(self))

    def forward(self, tokens: Tensor, forward: ForwardPass) -> Tensor:
        """Decode tokens of a sequence and append them to its caches.

        Args:
            tokens: `[batch, n]` int64.
            forward: Caches and positions of the tokens.

        Returns:
            Logits `[batch, n_rows, n_vocab]` in the type of the weights.
        """
        x = functional.embedding(tokens, self.embeddings)
        if self.embedding_scale != 1.0:
            x = x * self.embedding_scale
        for layer, block in enumerate(self.blocks):
            if not torch.compiler.is_compiling():
                self.check()
            x = block(x, forward, layer)
        if not forward.n_rows:
            return x.new_empty((tokens.shape[0], 0, self.output.weight.shape[0]))
        logits = self.output(self.norm(x[:, -forward.n_rows :]))
        if self.shape.softcap:
            logits = self.shape.softcap * torch.tanh(logits / self.shape.softcap)
        return logits


def _tensors(part: object) -> Iterator[Tensor]:
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, tuple):
        for each in part:
            yield from _tensors(each)
    elif is_dataclass(part):
        for each in fields(part):
            yield from _tensors(getattr(part, each.name))
