"""The models: Llama and its kin, Qwen 2 and 3, Gemma 3, Mamba, as their papers have them.

Touvron et al. 2023 (arXiv 2302.13971): RMSNorm before each block (Zhang and Sennrich 2019, arXiv
1910.07467), rotary positions (Su et al. 2021, arXiv 2104.09864), a gated feed-forward block
(Shazeer 2020, arXiv 2002.05202). Queries share key heads (Ainslie et al. 2023, arXiv 2305.13245).
Qwen 3 and Gemma 3 norm queries and keys (arXiv 2505.09388, 2503.19786); Gemma 3 norms what a block
gives too, and most of its layers see a sliding window. Mamba (Gu and Dao 2023, arXiv 2312.00752)
has a state in place of keys and values.

Shapes: `batch` sequences of one length side by side, `n` tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.backends.torch.caches.base import KVCache, KVState, storage_bytes
from engine.backends.torch.caches.recurrent import RecurrentCache
from engine.backends.torch.decode_plan import DecodePlan
from engine.backends.torch.hyperparameters import (
    Activation,
    AttentionShape,
    Hyperparameters,
    RopeShape,
    StateSpaceShape,
)

LayerCache = KVCache | RecurrentCache
Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values of tokens, `[batch, n, heads, head_dim]` each."""


@dataclass(frozen=True, slots=True)
class NewTokens:
    """New tokens of a sequence, and the caches that hold what was before them."""

    caches: Sequence[LayerCache]
    """One a layer, of the layer's kind."""
    n_tokens: int
    n_rows: int
    """The last tokens, which get logits."""


@dataclass(frozen=True, slots=True)
class Linear:
    """`x @ weight.T + bias`; weight is `[outputs, inputs]`."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


MAX_SINGLE_ROWS = 8
"""Rows that are multiplied one by one with float16 weights on a processor."""


@dataclass(frozen=True, slots=True)
class HalfLinear(Linear):
    """`Linear` with float16 weights on a processor.

    torch 2.13 multiplies one float16 row at 27 to 36 GB/s (one thread of an EPYC with AVX-512; 10
    to 15 in float32 and bfloat16), and several at a fifth of float32's speed: a few rows go one by
    one, more in float32.
    """

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if rows.shape[0] == 1:
            return functional.linear(x, self.weight, self.bias)
        if rows.shape[0] <= MAX_SINGLE_ROWS:
            made = [functional.linear(row, self.weight, self.bias) for row in rows]
            return torch.stack(made).view(*x.shape[:-1], -1)
        bias = None if self.bias is None else self.bias.float()
        wide = functional.linear(rows.float(), self.weight.float(), bias)
        return wide.to(x.dtype).view(*x.shape[:-1], -1)


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """x over the root of its mean square, times a learned gain."""

    gain: Tensor
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.gain.shape, self.gain, self.epsilon)


class Rope:
    """Turns each pair of elements of a head by an angle in proportion to its position."""

    def __init__(self, shape: RopeShape, head_dim: int, factors: Tensor | None) -> None:
        """Learn the angles.

        Args:
            shape: The base and scale of the angles.
            head_dim: Elements of a head; pair i turns by `base ** (-2 i / head_dim)` a position.
            factors: `[head_dim / 2]`, what each angle is divided by (Llama 3.1).
        """
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
        angles = shape.scale * shape.base**-exponents
        self._angles = angles if factors is None else angles / factors.to(angles)

    def turns(self, positions: Tensor) -> Tensor:
        """Cosine and sine of each angle at positions, `[n, 1, head_dim / 2, 2]` float32."""
        angles = positions.to("cpu", torch.float64)[:, None, None] * self._angles
        return torch.stack((angles.cos(), angles.sin()), -1).to(positions.device, torch.float32)


def rotate(heads: Tensor, turns: Tensor) -> Tensor:
    """Heads `[batch, n, heads, head_dim]` turned by their positions; neighbours are pairs."""
    pairs = heads.float().reshape(*heads.shape[:-1], -1, 2)
    if torch.compiler.is_compiling():  # which has no complex numbers
        (x, y), (cos, sin) = pairs.unbind(-1), turns.unbind(-1)
        turned = torch.stack((x * cos - y * sin, x * sin + y * cos), -1)
    else:
        turned = torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(turns))
    return turned.flatten(-2).to(heads.dtype)


class ForwardPass:
    """What the layers of one forward share: the tokens' caches and positions."""

    def __init__(
        self, new: NewTokens, device: torch.device, plan: DecodePlan | None = None
    ) -> None:
        self.new = new
        self._plan = plan
        self._start = new.caches[0].length
        self.positions = torch.arange(self._start, self._start + new.n_tokens, device=device)
        """`[n_tokens]` int64"""
        self._turns: dict[Rope, Tensor] = {}
        self._masks: dict[int | None, tuple[Tensor, Tensor]] = {}

    def turns(self, rope: Rope) -> Tensor:
        """Cosines and sines of all tokens, `[n, 1, head_dim / 2, 2]`."""
        known = self._turns.get(rope)
        if known is None:
            known = self._turns[rope] = rope.turns(self.positions)
        return known

    def attend(self, layer: int, shape: AttentionShape, heads: "Heads") -> Tensor:
        """What the tokens read of their cache, which holds them from now on.

        Args:
            layer: Whose cache.
            shape: Of its attention.
            heads: Queries, keys and values of all tokens.

        Returns:
            `[batch, n, n_heads * head_dim]`
        """
        queries, keys, values = heads
        cache = self.new.caches[layer]
        assert not isinstance(cache, RecurrentCache)
        held = self.append(cache, keys.transpose(1, 2), values.transpose(1, 2))
        return self.read(queries, held, shape)

    def append(self, cache: KVCache, keys: Tensor, values: Tensor) -> KVState:
        """What a cache holds with new keys and values, `[batch, n_kv_heads, n, head_dim]`."""
        return cache.update(keys, values)

    def read(self, queries: Tensor, held: KVState, shape: AttentionShape) -> Tensor:
        """What the queries read, `[batch, n, n_heads * head_dim]`."""
        if self._plan is None:
            return attend(queries, held, self.mask(held, shape.cache.window), shape.scale)
        parts = []
        for rows, window in self._plan.chunks(self._start, queries.shape[1]):
            windows = (each for each in (shape.cache.window, window) if each is not None)
            mask = held.mask(self.positions[rows], min(windows, default=None))
            parts.append(attend(queries[:, rows], held, mask, shape.scale))
        return torch.cat(parts, dim=1)

    def mask(self, held: KVState, window: int | None) -> Tensor | None:
        """What the tokens see, `[n_tokens, n_held]` bool; None where all see all."""
        queries, n_held = self.positions, held.positions.shape[0]
        if held.seen is not None:
            return held.mask(queries, window)
        is_whole = queries.shape[0] == 1 and n_held == self.new.caches[0].length
        if is_whole and (window is None or n_held <= window):
            return None
        known = self._masks.get(window)
        if known is None or not torch.equal(known[0], held.positions):
            known = self._masks[window] = held.positions, held.mask(queries, window)
        return known[1]


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

    def heads(self, x: Tensor, turns: Tensor) -> Heads:
        """Queries, keys and values of tokens `[batch, n, d_hidden]`."""
        n_heads, n_kv = self.shape.n_heads, self.shape.cache.n_kv_heads
        heads = self.qkv(x).view(*x.shape[:2], -1, self.shape.cache.k_head_dim)
        turned = rotate(self._normed(heads[:, :, : n_heads + n_kv]), turns)
        return turned[:, :, :n_heads], turned[:, :, n_heads:], heads[:, :, n_heads + n_kv :]

    def _normed(self, heads: Tensor) -> Tensor:
        if self.q_norm is None or self.k_norm is None:
            return heads
        n_heads = self.shape.n_heads
        queries, keys = heads[:, :, :n_heads], heads[:, :, n_heads:]
        return torch.cat((self.q_norm(queries), self.k_norm(keys)), dim=2)


def attend(queries: Tensor, held: KVState, mask: Tensor | None, scale: float | Tensor) -> Tensor:
    """What queries read of the values that they see.

    Queries that share a key head stand one after the other as if they were more tokens, so that
    keys and values are read where they lie and never repeated.

    Args:
        queries: `[batch, n, n_heads, head_dim]`
        held: Keys and values.
        mask: `[n, n_held]` bool, None where all is seen.
        scale: What scores are multiplied by; `[head_dim]` where parts of a key have their own.

    Returns:
        `[batch, n, n_heads * head_dim]`
    """
    batch, n, n_heads, head_dim = queries.shape
    if isinstance(scale, Tensor):
        queries, scale = queries * scale, 1.0
    n_kv = held.keys.shape[1]
    shared = n_heads // n_kv
    rows = queries.view(batch, n, n_kv, shared, head_dim).permute(0, 2, 3, 1, 4)
    rows = rows.reshape(batch, n_kv, shared * n, head_dim)
    if mask is not None and shared > 1:
        mask = mask.repeat(shared, 1)
    keys, values = held.keys, held.values
    if rows.dtype == torch.float16 and rows.device.type == "cpu":
        # A third to a quarter of the time, conversions included (torch 2.13, 200 to 4,000 tokens).
        rows, keys, values = rows.float(), keys.float(), values.float()
    if rows.device.type == "cuda" and rows.shape[2] <= MAX_SPLIT_ROWS:
        read = attend_split(rows, keys, values, mask, scale)
    else:
        read = functional.scaled_dot_product_attention(rows, keys, values, mask, scale=scale)
    read = read.to(queries.dtype).view(batch, n_kv, shared, n, -1).permute(0, 3, 1, 2, 4)
    return read.reshape(batch, n, -1)


MAX_SPLIT_ROWS = 256
"""Rows of queries, of a decoded token or a draft, that read keys in parallel on CUDA."""


def attend_split(
    rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Attention of a few rows on CUDA, by products that are spread over the keys.

    torch's own kernels go through the keys of a head one after the other, on few of a GPU's
    multiprocessors: 157 us for 4,096 tokens and 660 for 16,384, where this takes 24 and 57 (torch
    2.11, H100, 8 key heads of 128, bfloat16).

    Args:
        rows: `[batch, n_kv_heads, n_rows, head_dim]`
        keys: `[batch, n_kv_heads, n_held, head_dim]`
        values: `[batch, n_kv_heads, n_held, head_dim]`
        mask: `[n_rows, n_held]` bool, None where all is seen.
        scale: What scores are multiplied by.
    """
    queries, across = rows.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2)
    if rows.dtype == torch.float32:
        scores = torch.bmm(queries, across)
    else:
        scores = torch.bmm(queries, across, out_dtype=torch.float32)
    scores = scores * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(-1).to(values.dtype)
    return torch.bmm(weights, values.flatten(0, 1)).view(*rows.shape[:3], -1)


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
    """Of what attention gives (Gemma 3)."""
    feed_forward_post_norm: RMSNorm | None = None

    def __call__(self, x: Tensor, forward: ForwardPass, layer: int) -> Tensor:
        attention = self.attention
        heads = attention.heads(self.attention_norm(x), forward.turns(attention.rope))
        read = attention.out(forward.attend(layer, attention.shape, heads))
        x = x + (read if self.attention_post_norm is None else self.attention_post_norm(read))
        made = self.feed_forward(self.feed_forward_norm(x))
        return x + (
            made if self.feed_forward_post_norm is None else self.feed_forward_post_norm(made)
        )


@dataclass(frozen=True, slots=True)
class StateSpace:
    """A selective state space: what a token adds to the state, and reads of it, depends on it.

    Algorithm 2 of the paper, token after token; `A` of the file is negative already. The recurrence
    is computed in float32 whatever the type of the weights, and goes on from what the cache kept.
    """

    shape: StateSpaceShape
    inputs: Linear
    """To the convolution's inputs, then to the gate."""
    convolution: Tensor
    """`[d_inner, d_conv]`, for the newest token last."""
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
        cache = forward.new.caches[layer]
        assert isinstance(cache, RecurrentCache)
        return self.out(self._scan(inner, cache) * functional.silu(gate))

    def _scan(self, inner: Tensor, cache: RecurrentCache) -> Tensor:
        """What the tokens give, `[batch, n, d_inner]`."""
        n_past = self.shape.d_conv - 1
        convolved, hidden = cache.state()
        new = inner.transpose(1, 2).to(convolved.dtype)
        line = torch.cat((convolved, new), dim=2).to(inner.dtype)
        windows = line.unfold(2, self.shape.d_conv, 1)
        x = (windows * self.convolution[:, None]).sum(-1).transpose(1, 2)
        x = functional.silu(x + self.convolution_bias)
        sizes = [self.shape.dt_rank, self.shape.d_state, self.shape.d_state]
        dt, b, c = self.selection(x).split(sizes, dim=-1)
        step = functional.softplus(self.time_step(dt).float())
        kept = torch.exp(step[..., None] * self.decay)
        added = (step * x.float())[..., None] * b.float()[:, :, None]
        read = []
        for token in range(inner.shape[1]):
            hidden = kept[:, token] * hidden.float() + added[:, token]
            cache.update((line[:, :, token + 1 : token + 1 + n_past], hidden))
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
    """Embeddings, blocks (those of a state space too), and the logits of what may follow."""

    shape: Hyperparameters
    embeddings: Tensor
    """`[n_vocab, d_hidden]`"""
    embedding_scale: float
    blocks: tuple[TransformerBlock | StateSpaceBlock, ...]
    norm: RMSNorm
    output: Linear
    check: Callable[[], None]
    """Called before each layer; what it raises ends the forward."""

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.embeddings.device

    @property
    def nbytes(self) -> int:
        """Bytes of the weights; what is used twice lies in memory once."""
        return storage_bytes(_tensors(self))

    def forward(self, tokens: Tensor, new: NewTokens, plan: DecodePlan | None = None) -> Tensor:
        """Decode tokens of a sequence.

        Args:
            tokens: `[batch, n]` int64.
            new: Whose they are; the caches then hold them too.
            plan: What each token sees; None is all that the model was trained to see.

        Returns:
            Logits `[batch, n_rows, n_vocab]` of the rows that are asked for, in the type of the
            weights.
        """
        return self.through(tokens, ForwardPass(new, self.device, plan))

    def through(self, tokens: Tensor, forward: ForwardPass) -> Tensor:
        """As `forward`, where it is known already what its layers share."""
        x = functional.embedding(tokens, self.embeddings)
        if self.embedding_scale != 1.0:
            x = x * self.embedding_scale
        for layer, block in enumerate(self.blocks):
            if not torch.compiler.is_compiling():
                self.check()
            x = block(x, forward, layer)
        n_rows = forward.new.n_rows
        if not n_rows:
            return x.new_empty((tokens.shape[0], 0, self.output.weight.shape[0]))
        logits = self.output(self.norm(x[:, -n_rows:]))
        if self.shape.softcap:
            logits = self.shape.softcap * torch.tanh(logits / self.shape.softcap)
        return logits


def _tensors(part: object) -> Iterator[Tensor]:
    """All weights of a part of a model."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, tuple):
        for each in part:
            yield from _tensors(each)
    elif is_dataclass(part):
        for each in fields(part):
            yield from _tensors(getattr(part, each.name))
