"""Header-only models of chosen size and vocabulary, for judging pairs."""

from collections.abc import Sequence
from pathlib import Path

from tests.support.gguf_files import header, llama_values, write

WIDTH = 128
LAYER_BYTES = 4 * WIDTH * WIDTH
TOKENS = tuple(f"token {n}" for n in range(200))


def drafting_model(
    path: Path, n_layers: int, tokens: Sequence[str] = TOKENS, **changes: object
) -> Path:
    """Write a model of one square F32 tensor a layer, `LAYER_BYTES` each, and tied embeddings.

    Args:
        path: Where to; folders are made.
        n_layers: What a step reads, nearly: the embeddings weigh as much as one layer and a half.
        tokens: The vocabulary.
        changes: Further keys after `tokenizer.ggml.`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors: list[tuple[str, tuple[int, ...], int, int]] = [
        (f"blk.{n}.ffn_up.weight", (WIDTH, WIDTH), 0, n * LAYER_BYTES) for n in range(n_layers)
    ]
    end = n_layers * LAYER_BYTES
    tensors.append(("token_embd.weight", (WIDTH, len(tokens)), 0, end))
    values = llama_values() | {
        "general.name": path.stem,
        "llama.block_count": n_layers,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": list(tokens),
    }
    values |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return write(path, header(values, tensors), data_bytes=end + 4 * WIDTH * len(tokens))
