"""Facts of a tensor table: widths of activations, and the weights that a step reads."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from engine.model.gguf import GgufFile, TensorInfo

EMBEDDINGS = "token_embd.weight"
MIXTURES = 5  # of RWKV 6: decay, key, value, receptance, gate; RWKV 7 has a tensor of its own
BEFORE_BLOCK = ("ffn_norm", "attn_output_norm", "post_attention_norm", "attn_norm_2")
"""Names of the norm between attention and a block."""
LAYER = re.compile(r"^blk\.(\d+)\.")
LOOKED_UP = re.compile(
    r"^(token_embd|per_layer_token_embd|position_embd|token_types|d2t)\b"
    r"|\.(attn_rel_b|embed_tokens)\b"
)
"""Tensors that a token reads one row of (`GGML_OP_GET_ROWS` in llama.cpp's
`src/llama-arch.cpp`)."""
EXPERT = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")
"""Tensors that a token reads its experts' part of (llama.cpp 0c1e57098, common/common.h)."""


@dataclass(frozen=True, slots=True)
class Widths:
    """Elements of one token's activations in the widest layer of each kind, or 0."""

    feed_forward: int = 0  # inner elements of a dense feed-forward block
    is_gated: bool = True  # whether the block multiplies two such activations (SwiGLU)
    is_post_norm: bool = False  # post-norm instead of pre-norm
    is_parallel: bool = False  # whether attention and block read the same normed states
    expert: int = 0  # inner elements of one expert
    expert_output: int = 0  # output elements of one expert: fewer than hidden ones if latent
    is_expert_gated: bool = True
    shared_expert: int = 0  # inner elements of the experts that every token uses
    query: int = 0  # elements of all query heads; with keys and values if one matrix computes all
    is_decompressed: bool = False  # whether K and V come from a latent row (older DeepSeek)
    is_fused: bool = False  # whether one matrix computes queries, keys and values
    key_value: int = 0  # elements of all key and value heads
    state_input: int = 0  # elements that a layer of Mamba projects its input to
    mixtures: int = 0  # all mixtures of a token with the previous one (RWKV)
    gated_delta_net: int = 0  # Q, K and V that a gated delta net convolves (Qwen 3 Next)
    delta_net: int = 0  # elements of all heads of a delta net with a gate per channel (Kimi Linear)
    linear_attention: int = 0  # elements of the input of lightning attention (MiniMax Text 01)


def widths_of(tensors: tuple[TensorInfo, ...]) -> Widths:
    """Read the widths of a tensor table; matrices are (inputs, outputs) in GGUF's order."""
    table = _Table(tensors)
    fused = table.outputs("attn_qkv")
    query = max(table.outputs("attn_q"), table.outputs("attn_q_b"))
    separate = table.outputs("attn_k") + table.outputs("attn_v")
    latent = max(table.outputs("attn_kv_b"), table.outputs("attn_kv_a_mqa"))
    return Widths(
        feed_forward=table.inputs("ffn_down"),
        is_gated=table.has("ffn_gate") or table.outputs("ffn_up") > table.inputs("ffn_down"),
        is_post_norm=not table.has("ffn_norm") and table.has("post_ffw_norm"),
        is_parallel=table.has("attn_norm") and not any(map(table.has, (*BEFORE_BLOCK, "ssm_in"))),
        expert=table.inputs("ffn_down_exps") if table.has("ffn_gate_inp") else 0,
        expert_output=table.outputs("ffn_down_exps"),
        is_expert_gated=table.has("ffn_gate_exps") or table.has("ffn_gate_up_exps"),
        shared_expert=table.inputs("ffn_down_shexp"),
        query=query or fused,
        is_decompressed=table.has("attn_kv_b"),
        is_fused=not query,
        key_value=max(separate, latent),
        state_input=table.outputs("ssm_in"),
        mixtures=table.elements("time_mix_lerp_fused")
        or MIXTURES * table.inputs("time_mix_lerp_x"),
        gated_delta_net=table.outputs("ssm_conv1d") if table.has("attn_gate") else 0,
        delta_net=table.rows("ssm_conv1d_q"),
        linear_attention=fused if table.has("attn_norm_2") and table.has("attn_gate") else 0,
    )


@dataclass(frozen=True, slots=True)
class TokenReads:
    """Bytes of weights that a batch reads."""

    dense_bytes: int  # read once for each batch
    expert_bytes: int = 0  # all experts together
    expert_share: float = 1.0  # share of the experts that one token uses

    def nbytes(self, n_rows: int = 1) -> int:
        """Bytes of a batch of independent rows."""
        share = 1.0 - (1.0 - self.expert_share) ** n_rows
        return self.dense_bytes + round(share * self.expert_bytes)


def token_reads(file: GgufFile) -> TokenReads:
    """The weights that a step reads, without an MTP head; of the embeddings it is a row."""
    dense = experts = 0
    for tensor in read_tensors(file):
        if EXPERT.search(tensor.name):
            experts += tensor.nbytes
        else:
            dense += tensor.nbytes
    return TokenReads(dense, experts, expert_share(file))


def read_tensors(file: GgufFile) -> Iterator[TensorInfo]:
    """The tensors that a step reads, with all experts; embeddings if they are the output too."""
    keys = file.architecture
    n_head = file.integer(f"{keys}.nextn_predict_layers") or 0
    n_trunk = (file.integer(f"{keys}.block_count") or 0) - n_head
    has_output = any(tensor.name == "output.weight" for tensor in file.tensors)
    for tensor in file.tensors:
        layer = LAYER.match(tensor.name)
        if layer and n_head and int(layer[1]) >= n_trunk:
            continue
        is_output = tensor.name == EMBEDDINGS and not has_output
        if is_output or not LOOKED_UP.search(tensor.name):
            yield tensor


def expert_share(file: GgufFile) -> float:
    """Share of the experts that one token uses; 1 without experts."""
    n_experts = file.integer(f"{file.architecture}.expert_count")
    key = f"{file.architecture}.expert_used_count"
    n_used = max(file.integers(key) or (file.integer(key) or 0,))
    return min(max(n_used / n_experts, 0.0), 1.0) if n_experts and n_used else 1.0


class _Table:
    def __init__(self, tensors: tuple[TensorInfo, ...]) -> None:
        self._shapes: defaultdict[str, list[tuple[int, ...]]] = defaultdict(list)
        for tensor in tensors:
            if tensor.name.startswith("blk.") and tensor.name.endswith(".weight"):
                name = tensor.name.split(".", 2)[2].removesuffix(".weight")
                self._shapes[name].append(tensor.shape)

    def has(self, name: str) -> bool:
        return name in self._shapes

    def inputs(self, name: str) -> int:
        return self._most(name, lambda shape: shape[0])

    def outputs(self, name: str) -> int:
        return self._most(name, lambda shape: shape[1] if len(shape) > 1 else 0)

    def rows(self, name: str) -> int:
        return self._most(name, lambda shape: prod(shape[1:]))

    def elements(self, name: str) -> int:
        return self._most(name, prod)

    def _most(self, name: str, size: Callable[[tuple[int, ...]], int]) -> int:
        return max(map(size, self._shapes.get(name, ())), default=0)
