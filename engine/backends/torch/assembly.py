"""A model from the tensors of its file; matrices with the same input are merged."""

from collections.abc import Callable
from dataclasses import dataclass, field

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
    Linear,
    RMSNorm,
    Rope,
    StateSpace,
    StateSpaceBlock,
    Transformer,
    TransformerBlock,
)
from engine.backends.torch.weights import TensorReader


def assemble(
    shape: Hyperparameters, weights: TensorReader, check: Callable[[], None]
) -> Transformer:
    """Read a model, layer by layer.

    Args:
        shape: Its hyperparameters.
        weights: Its tensors.
        check: Called before each layer of a forward pass; an exception ends the pass.

    Raises:
        ModelLoadError: a tensor is missing, or has an unsupported type.
    """
    return _Assembly(shape, weights).model(check)


@dataclass(slots=True)
class _Assembly:
    shape: Hyperparameters
    weights: TensorReader
    ropes: dict[RopeShape, Rope] = field(default_factory=dict)

    def model(self, check: Callable[[], None]) -> Transformer:
        shape, weights = self.shape, self.weights
        embeddings = weights.read("token_embd.weight")
        output = weights.optional("output.weight")
        return Transformer(
            shape=shape,
            embeddings=embeddings,
            embedding_scale=shape.d_hidden**0.5 if shape.family.scales_embeddings else 1.0,
            blocks=tuple(self._block(f"blk.{index}.", each) for index, each in
                         enumerate(shape.layers)),
            norm=self._norm("output_norm.weight"),
            output=Linear(embeddings if output is None else output,
                          weights.optional("output.bias")),
            check=check,
        )  # fmt: skip

    def _block(
        self, prefix: str, layer: AttentionShape | StateSpaceShape
    ) -> TransformerBlock | StateSpaceBlock:
        norm = self._norm(f"{prefix}attn_norm.weight")
        if isinstance(layer, StateSpaceShape):
            return StateSpaceBlock(norm, self._state_space(prefix, layer))
        return TransformerBlock(
            attention_norm=norm,
            attention=self._attention(prefix, layer),
            feed_forward_norm=self._norm(f"{prefix}ffn_norm.weight"),
            feed_forward=FeedForward(
                gate_up=self._linear(prefix, "ffn_gate", "ffn_up"),
                down=self._linear(prefix, "ffn_down"),
                activation=self.shape.family.activation,
            ),
            attention_post_norm=self._optional_norm(f"{prefix}post_attention_norm.weight"),
            feed_forward_post_norm=self._optional_norm(f"{prefix}post_ffw_norm.weight"),
        )

    def _state_space(self, prefix: str, layer: StateSpaceShape) -> StateSpace:
        weights = self.weights
        return StateSpace(
            shape=layer,
            inputs=self._linear(prefix, "ssm_in"),
            convolution=weights.read(f"{prefix}ssm_conv1d.weight"),
            convolution_bias=weights.read(f"{prefix}ssm_conv1d.bias"),
            selection=self._linear(prefix, "ssm_x"),
            time_step=self._linear(prefix, "ssm_dt"),
            decay=weights.read(f"{prefix}ssm_a", dtype=torch.float32),
            skip=weights.read(f"{prefix}ssm_d", dtype=torch.float32),
            out=self._linear(prefix, "ssm_out"),
        )

    def _attention(self, prefix: str, layer: AttentionShape) -> Attention:
        """Attention whose rotated pairs are adjacent, whatever their order in the file."""
        head_dim = layer.cache.k_head_dim
        qkv = self._linear(prefix, "attn_q", "attn_k", "attn_v")
        q_norm = self._optional_norm(f"{prefix}attn_q_norm.weight")
        k_norm = self._optional_norm(f"{prefix}attn_k_norm.weight")
        if self.shape.family.pairs == "halves":
            n_rotated = (layer.n_heads + layer.cache.n_kv_heads) * head_dim
            bias = None if qkv.bias is None else _interleaved(qkv.bias, n_rotated, head_dim)
            qkv = Linear(_interleaved(qkv.weight, n_rotated, head_dim), bias)
            q_norm, k_norm = _interleaved_norm(q_norm), _interleaved_norm(k_norm)
        return Attention(
            shape=layer,
            rope=self._rope(layer),
            qkv=qkv,
            out=self._linear(prefix, "attn_output"),
            q_norm=q_norm,
            k_norm=k_norm,
        )

    def _linear(self, prefix: str, *names: str) -> Linear:
        weights = torch.cat([self.weights.read(f"{prefix}{name}.weight") for name in names])
        biases = [f"{prefix}{name}.bias" for name in names]
        if not all(bias in self.weights for bias in biases):
            return Linear(weights)
        return Linear(weights, torch.cat([self.weights.read(bias) for bias in biases]))

    def _norm(self, name: str) -> RMSNorm:
        return RMSNorm(self.weights.read(name), self.shape.norm_epsilon)

    def _optional_norm(self, name: str) -> RMSNorm | None:
        return self._norm(name) if name in self.weights else None

    def _rope(self, layer: AttentionShape) -> Rope:
        """One object for all layers with the same angles."""
        if layer.rope not in self.ropes:
            name, weights = "rope_freqs.weight", self.weights
            factors = weights.read(name, dtype=torch.float32) if name in weights else None
            self.ropes[layer.rope] = Rope(layer.rope, layer.cache.k_head_dim, factors)
        return self.ropes[layer.rope]


def _interleaved(rows: Tensor, n_rotated: int, head_dim: int) -> Tensor:
    """Reorder the first `n_rotated` rows, whose pairs are in the halves of each head."""
    heads = rows[:n_rotated].view(-1, 2, head_dim // 2, *rows.shape[1:])
    return torch.cat((heads.transpose(1, 2).flatten(0, 2), rows[n_rotated:]))


def _interleaved_norm(norm: RMSNorm | None) -> RMSNorm | None:
    if norm is None:
        return None
    n = norm.gain.shape[0]
    return RMSNorm(_interleaved(norm.gain, n, n), norm.epsilon)
