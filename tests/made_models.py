"""Header-only models of shapes that nobody published, which llama.cpp's dry run takes."""

from collections.abc import Mapping
from math import prod
from pathlib import Path

from engine.model.architecture import Model, read_model
from engine.model.ggml_types import GGML_TYPES
from engine.model.gguf_header import Value
from engine.model.layouts import LAYOUTS
from engine.model.layouts.tables import Keys, Layout
from tests.gguf_files import header, write

F32, I32 = 0, 26
ALIGNMENT = 32
UNPREFIXED = ("xielu.", "tokenizer.")


def made_model(
    path: Path,
    architecture: str,
    values: Mapping[str, Value],
    *,
    traits: frozenset[str] = frozenset(),
    layout: Layout | None = None,
    n_vocab: int = 512,
    types: Mapping[str, int] | None = None,
) -> Model:
    """Write a header with these keys and the tensors of its layout, and read it.

    It has no vocabulary but its length. `layout` is for architectures whose tensors the product
    does not know, `types` for tensors by name that are not f32.
    """
    keys = Keys(architecture, values, n_vocab, traits)
    tensors, offset = [], 0
    for name, shape in (layout or LAYOUTS[architecture]).tensors(keys):
        kind = (types or {}).get(name, I32 if "tid2eid" in name else F32)
        tensors.append((name, shape, kind, offset))
        nbytes = GGML_TYPES[kind].row_bytes(prod(shape))
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
    head: dict[str, object] = {
        "general.architecture": architecture,
        "tokenizer.ggml.model": "none",
        f"{architecture}.vocab_size": n_vocab,
    }
    for key, value in values.items():
        plain = list(value) if isinstance(value, tuple) else value
        head[key if key.startswith(UNPREFIXED) else f"{architecture}.{key}"] = plain
    return read_model(write(path, header(head, tensors), data_bytes=offset))
