"""Header-only models of shapes that nobody published, which llama.cpp's dry run takes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

from engine.model.architecture import Model, read_model
from engine.model.catalog import CatalogEntry, find_entry
from engine.model.ggml_types import GGML_TYPES, TYPE_NUMBERS
from engine.model.gguf_header import Value
from engine.model.snapshots import Snapshot, unpack
from tests.layouts import LAYOUTS
from tests.layouts.tables import Keys
from tests.support.gguf_files import header, write

F32 = 0
ALIGNMENT = 32
HEADERS_PATH = Path(__file__).parents[1] / "made_headers.json.gz"
UNPREFIXED = ("xielu.", "tokenizer.")
TRAITS = {
    "rope_freqs": "rope_freqs.weight", "rope_long_short": "rope_factors_long.weight",
    "expert_bias": "exp_probs_b.bias", "qkv_bias": "attn_q.bias",
    "next_token_vocabulary": "nextn.embed_tokens.weight",
}  # fmt: skip
"""Traits of `tests/layouts` by the tensors that tell them."""


@dataclass(frozen=True, slots=True)
class CatalogKeys:
    """What the tensors of a catalogue's model follow from; keys without the architecture."""

    architecture: str
    values: Mapping[str, Value]
    n_vocab: int
    traits: frozenset[str]


def catalog_keys(name: str) -> CatalogKeys:
    snapshot = shape_named(name).snapshot
    prefix = f"{snapshot.architecture}."
    values = {key.removeprefix(prefix): value for key, value in snapshot.values.items()}
    values.pop("vocab_size", None)
    stems = {_stem(tensor.name) for tensor in snapshot.tensors()}
    traits = {trait for trait, stem in TRAITS.items() if stem in stems}
    traits |= {"tied"} if "output.weight" not in stems else set()
    return CatalogKeys(snapshot.architecture, values, snapshot.n_vocab, frozenset(traits))


@cache
def made_headers() -> Mapping[str, Snapshot]:
    """Headers of models that nobody published, packed as the catalogue's are.

    Their tensors are those that the loader of llama.cpp 0c1e57098 asks for; `benchmarks/shapes.py`
    finds them out for any keys.
    """
    return unpack(HEADERS_PATH.read_bytes())


def shape_named(name: str) -> CatalogEntry:
    """A model of the catalogue, or a shape that only tests have: its figures were never checked."""
    snapshot = made_headers().get(name)
    return find_entry(name) if snapshot is None else CatalogEntry(name, (), "", "", snapshot)


def written_model(path: Path, snapshot: Snapshot) -> Model:
    """Write a header with the tensors of a snapshot, and read it."""
    shapes = [(each.name, each.shape, TYPE_NUMBERS[each.type.name]) for each in snapshot.tensors()]
    return _written(path, snapshot.architecture, snapshot.values, snapshot.n_vocab, shapes)


def _stem(name: str) -> str:
    return name.split(".", 2)[2] if name.startswith("blk.") else name


def _full(architecture: str, key: str) -> str:
    return key if key.startswith(UNPREFIXED) else f"{architecture}.{key}"


def made_model(
    path: Path,
    architecture: str,
    values: Mapping[str, Value],
    *,
    traits: frozenset[str] = frozenset(),
    n_vocab: int = 512,
    types: Mapping[str, int] | None = None,
) -> Model:
    """Write a header with these keys and the tensors of its layout, and read it.

    It has no vocabulary but its length. `types` is for tensors by name that are not f32.
    """
    keys = Keys(architecture, values, n_vocab, traits)
    shapes = [
        (name, shape, (types or {}).get(name, F32))
        for name, shape in LAYOUTS[architecture].tensors(keys)
    ]
    full = {_full(architecture, key): value for key, value in values.items()}
    return _written(path, architecture, full, n_vocab, shapes)


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
