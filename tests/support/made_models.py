"""Header-only models of shapes that nobody published, which llama.cpp's dry run takes."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path

from engine.model.architecture import Model, read_model
from engine.model.catalog import CatalogEntry, find_entry, unpack
from engine.model.ggml import GGML_TYPES, TYPE_NUMBERS
from engine.model.gguf import Value
from tests.support.gguf_files import header, write

F32 = 0
ALIGNMENT = 32
HEADERS_PATH = Path(__file__).parents[1] / "made_headers.json.gz"
UNPREFIXED = ("xielu.", "tokenizer.")


@cache
def made_headers() -> Mapping[str, CatalogEntry]:
    """Headers of models that nobody published, packed as the catalogue's are.

    Their tensors are those that the loader of llama.cpp 0c1e57098 asks for; `benchmarks/shapes.py`
    finds them out for any keys. `small …` are the shapes of `filled_models.py`, `short …` the first
    two layers of a catalogue's model with 512 tokens; the state of `wide mamba` is large.
    """
    return unpack(HEADERS_PATH.read_bytes())


def shape_named(name: str) -> CatalogEntry:
    """A model of the catalogue, or a shape that only tests have: its figures were never checked."""
    return made_headers().get(name) or find_entry(name)


def written_model(path: Path, entry: CatalogEntry, types: Mapping[str, int] | None = None) -> Model:
    """Write a header with the tensors of an entry, and read it; `types` are by tensor name."""
    shapes = [
        (each.name, each.shape, (types or {}).get(each.name, TYPE_NUMBERS[each.type.name]))
        for each in entry.tensors()
    ]
    return _written(path, entry.architecture, entry.values, entry.n_vocab, shapes)


def made_model(
    path: Path,
    architecture: str,
    values: Mapping[str, Value],
    *,
    n_vocab: int = 512,
    kind: int = F32,
) -> Model:
    """Write a header with these keys, and read it: a Llama of any size with matrices of a type, or
    the small model of another architecture, of f32.

    It has no vocabulary but its length.
    """
    if architecture == "llama":
        shapes = list(_llama_tensors(values, n_vocab, kind))
    else:
        small = made_headers()[f"small {architecture}"]
        shapes = [(each.name, each.shape, F32) for each in small.tensors()]
    full = {
        key if key.startswith(UNPREFIXED) else f"{architecture}.{key}": value
        for key, value in values.items()
    }
    return _written(path, architecture, full, n_vocab, shapes)


def _llama_tensors(
    values: Mapping[str, Value], n_vocab: int, kind: int
) -> Iterator[tuple[str, tuple[int, ...], int]]:
    n_layers, d, ff, n_heads = (
        int(values[key])  # type: ignore[arg-type]  # numbers
        for key in (
            "block_count",
            "embedding_length",
            "feed_forward_length",
            "attention.head_count",
        )
    )
    kv = d // n_heads * int(values.get("attention.head_count_kv", n_heads))  # type: ignore[arg-type]
    layer = {
        "attn_norm": (d,), "attn_q": (d, d), "attn_k": (d, kv), "attn_v": (d, kv),
        "attn_output": (d, d), "ffn_norm": (d,), "ffn_gate": (d, ff), "ffn_up": (d, ff),
        "ffn_down": (ff, d),
    }  # fmt: skip
    named = {"token_embd": (d, n_vocab), "output_norm": (d,), "output": (d, n_vocab)}
    for index in range(n_layers):
        named |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    for name, shape in named.items():
        yield f"{name}.weight", shape, kind if len(shape) > 1 else F32


def _written(
    path: Path,
    architecture: str,
    values: Mapping[str, Value],
    n_vocab: int,
    shapes: Iterable[tuple[str, tuple[int, ...], int]],
) -> Model:
    tensors, offset = [], 0
    for name, shape, kind in shapes:
        tensors.append((name, shape, kind, offset))
        nbytes = GGML_TYPES[kind].row_bytes(prod(shape))
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
    head: dict[str, object] = {
        "general.architecture": architecture,
        "tokenizer.ggml.model": "none",
        f"{architecture}.vocab_size": n_vocab,
    }
    for key, value in values.items():
        head[key] = list(value) if isinstance(value, tuple) else value
    return read_model(write(path, header(head, tensors), data_bytes=offset))
