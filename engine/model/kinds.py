"""What a GGUF file is for: a model to talk to, or a part of one."""

from enum import StrEnum

from engine.model.gguf import GgufFile


class ModelKind(StrEnum):
    """Kinds of GGUF files."""

    MODEL = "model"
    EMBEDDING = "embedding"
    """Turns texts into vectors, or ranks them."""
    DRAFT = "draft"
    """Only drafts for one other model, and is none by itself."""
    PROJECTOR = "projector"
    """Turns images or sounds into embeddings for a model (mmproj)."""
    ADAPTER = "adapter"
    """Changes a model: LoRA, or a control vector."""
    VOCABULARY = "vocabulary"
    """Has tokens and no weights."""
    IMATRIX = "imatrix"
    """Figures that a quantisation was made with."""


PROJECTORS = frozenset({"clip", "mmproj"})
ADAPTERS = frozenset({"controlvector"})
DRAFTS = frozenset({"eagle3", "dflash", "gemma4-assistant"})
EMBEDDINGS = frozenset(
    {
        "bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2",
        "jina-bert-v3", "eurobert", "gemma-embedding", "llama-embed", "t5encoder",
    }
)  # fmt: skip
"""Architectures of llama.cpp 0c1e57098 (`src/llama-arch.cpp`) that generate no text."""
DIFFUSION = frozenset({"dream", "llada", "llada-moe", "rnd1"})
"""Architectures that generate text though they look at all of it at once."""
TYPES = {
    "mmproj": ModelKind.PROJECTOR,
    "adapter": ModelKind.ADAPTER,
    "imatrix": ModelKind.IMATRIX,
    "vocab": ModelKind.VOCABULARY,
}
"""Values of `general.type`."""


def kind_of(file: GgufFile) -> ModelKind:
    """Give what a file is for, by its header."""
    name = file.architecture
    said = TYPES.get(file.text("general.type") or "")
    if said is not None:
        return said
    if name in PROJECTORS:
        return ModelKind.PROJECTOR
    if name in ADAPTERS or "adapter.type" in file.values:
        return ModelKind.ADAPTER
    if name in DRAFTS or _is_only_next_token_head(file):
        return ModelKind.DRAFT
    if not file.tensors and "tokenizer.ggml.tokens" in file.array_lengths:
        return ModelKind.VOCABULARY
    return ModelKind.EMBEDDING if _gives_vectors(file) else ModelKind.MODEL


def _gives_vectors(file: GgufFile) -> bool:
    name = file.architecture
    if (file.integer(f"{name}.pooling_type") or 0) > 0:
        return True
    is_causal = file.values.get(f"{name}.attention.causal", name not in EMBEDDINGS)
    return is_causal is False and name not in DIFFUSION


def _is_only_next_token_head(file: GgufFile) -> bool:
    n_heads = file.integer(f"{file.architecture}.nextn_predict_layers") or 0
    n_blocks = file.integer(f"{file.architecture}.block_count") or 0
    return 0 < n_blocks <= n_heads
