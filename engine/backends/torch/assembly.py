"""A model out of the tensors of its file: matrices that read the same input become one."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.backends.torch.hyperparameters import (
    AttentionShape,
    Hyperparameters,
    RopeShape,
    StateSpaceShape,
)
from engine.backends.torch.model import (
    Attention,
    FeedForward,
    HalfLinear,
    Linear,
    RMSNorm,
    Rope,
    StateSpace,
    StateSpaceBlock,
    Transformer,
    TransformerBlock,
)
from engine.backends.torch.weights import TensorReader

ROPE_FACTORS = "rope_freqs.weight"
EMBEDDINGS, OUTPUT = "token_embd.weight", "output.weight"


def assemble(
    shape: Hyperparameters, weights: TensorReader, check: Callable[[], None]
) -> Transformer:
    """The model of a file, its layers read one after the other.

    Args:
        shape: What the header says.
        weights: Where its tensors come from.
        check: Called before each layer of a forward; what it raises ends the forward.

    Raises:
        ModelLoadError: a tensor is missing, or of a type that torch cannot have.
    """
    return _Assembly(shape, weights, check).model()


@dataclass(slots=True)
class _Assembly:
    shape: Hyperparameters
    weights: TensorReader
    check: Callable[[], None]

    def model(self) -> Transformer:
        shape, weights = self.shape, self.weights
        embeddings = output = weights.read(EMBEDDINGS)  # once in memory for both
        if OUTPUT in weights:
            output = weights.read(OUTPUT)
        return Transformer(
            shape=shape,
            embeddings=embeddings,
            embedding_scale=shape.d_hidden**0.5 if shape.family.scales_embeddings else 1.0,
            blocks=self._blocks(),
            norm=self._norm("output_norm.weight"),
            output=_linear(output, weights.optional("output.bias")),
            check=self.check,
        )

    def _blocks(self) -> tuple[TransformerBlock | StateSpaceBlock, ...]:
        ropes: dict[RopeShape, Rope] = {}
        return tuple(
            self._state_space(f"blk.{index}.", layer)
            if isinstance(layer, StateSpaceShape)
            else self._block(f"blk.{index}.", layer, self._rope(layer, ropes))
            for index, layer in enumerate(self.shape.layers)
        )

    def _state_space(self, prefix: str, layer: StateSpaceShape) -> StateSpaceBlock:
        read = self.weights
        return StateSpaceBlock(
            norm=self._norm(f"{prefix}attn_norm.weight"),
            mixer=StateSpace(
                shape=layer,
                inputs=self._linear(prefix, "ssm_in"),
                convolution=read.read(f"{prefix}ssm_conv1d.weight"),
                convolution_bias=read.read(f"{prefix}ssm_conv1d.bias"),
                selection=self._linear(prefix, "ssm_x"),
                time_step=self._linear(prefix, "ssm_dt"),
                decay=read.read(f"{prefix}ssm_a", dtype=torch.float32),
                skip=read.read(f"{prefix}ssm_d", dtype=torch.float32),
                out=self._linear(prefix, "ssm_out"),
            ),
        )

    def _block(self, prefix: str, layer: AttentionShape, rope: Rope) -> TransformerBlock:
        return TransformerBlock(
            attention_norm=self._norm(f"{prefix}attn_norm.weight"),
            attention=self._attention(prefix, layer, rope),
            feed_forward_norm=self._norm(f"{prefix}ffn_norm.weight"),
            feed_forward=FeedForward(
                gate_up=self._linear(prefix, "ffn_gate", "ffn_up"),
                down=self._linear(prefix, "ffn_down"),
                activation=self.shape.family.activation,
            ),
            attention_post_norm=self._optional_norm(f"{prefix}post_attention_norm.weight"),
            feed_forward_post_norm=self._optional_norm(f"{prefix}post_ffw_norm.weight"),
        )

    def _attention(self, prefix: str, layer: AttentionShape, rope: Rope) -> Attention:
        """Attention whose rotated pairs are neighbours, however the file has them."""
        head_dim = layer.cache.k_head_dim
        qkv = self._linear(prefix, "attn_q", "attn_k", "attn_v")
        q_norm = self._optional_norm(f"{prefix}attn_q_norm.weight")
        k_norm = self._optional_norm(f"{prefix}attn_k_norm.weight")
        if self.shape.family.pairs == "halves":
            n_turned = (layer.n_heads + layer.cache.n_kv_heads) * head_dim
            weight, bias = (
                None if each is None else _as_neighbours(each, n_turned, head_dim)
                for each in (qkv.weight, qkv.bias)
            )
            assert weight is not None
            qkv = _linear(weight, bias)
            q_norm, k_norm = _norm_as_neighbours(q_norm), _norm_as_neighbours(k_norm)
        return Attention(
            shape=layer,
            rope=rope,
            qkv=qkv,
            out=self._linear(prefix, "attn_output"),
            q_norm=q_norm,
            k_norm=k_norm,
        )

    def _linear(self, prefix: str, *names: str) -> Linear:
        """Matrices that read the same input, as one."""
        weights = torch.cat([self.weights.read(f"{prefix}{name}.weight") for name in names])
        biases = [f"{prefix}{name}.bias" for name in names]
        if not all(bias in self.weights for bias in biases):
            return _linear(weights)
        return _linear(weights, torch.cat([self.weights.read(bias) for bias in biases]))

    def _norm(self, name: str) -> RMSNorm:
        return RMSNorm(self.weights.read(name), self.shape.norm_epsilon)

    def _optional_norm(self, name: str) -> RMSNorm | None:
        return self._norm(name) if name in self.weights else None

    def _rope(self, layer: AttentionShape, known: dict[RopeShape, Rope]) -> Rope:
        """One object for all layers that turn alike."""
        if layer.rope not in known:
            read = self.weights
            factors = read.read(ROPE_FACTORS, dtype=torch.float32) if ROPE_FACTORS in read else None
            known[layer.rope] = Rope(layer.rope, layer.cache.k_head_dim, factors)
        return known[layer.rope]


def _linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    is_half = weight.dtype == torch.float16 and weight.device.type == "cpu"
    return (HalfLinear if is_half else Linear)(weight, bias)


def _as_neighbours(rows: Tensor, n_turned: int, head_dim: int) -> Tensor:
    """Rows of heads whose pairs are halves, reordered; those after `n_turned` stay."""
    heads = rows[:n_turned].view(-1, 2, head_dim // 2, *rows.shape[1:])
    return torch.cat((heads.transpose(1, 2).flatten(0, 2), rows[n_turned:]))


def _norm_as_neighbours(norm: RMSNorm | None) -> RMSNorm | None:
    if norm is None:
        return None
    n = norm.gain.shape[0]
    return RMSNorm(_as_neighbours(norm.gain, n, n), norm.epsilon)
