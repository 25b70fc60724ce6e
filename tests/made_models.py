"""Header-only models of shapes that nobody published, which llama.cpp's dry run takes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from engine.model.architecture import Model, read_model
from engine.model.catalog import CatalogEntry, find_entry
from engine.model.ggml_types import GGML_TYPES
from engine.model.gguf_header import TensorInfo, Value
from engine.model.snapshots import snapshot_of
from tests.gguf_files import header, write
from tests.layouts import LAYOUTS
from tests.layouts.tables import Keys, Layout

F32, I32 = 0, 26
ALIGNMENT = 32
UNPREFIXED = ("xielu.", "tokenizer.")
TRAITS = {
    "rope_freqs": "rope_freqs.weight", "rope_long_short": "rope_factors_long.weight",
    "expert_bias": "exp_probs_b.bias", "qkv_bias": "attn_q.bias", "qk_norm": "attn_q_norm.weight",
    "next_token_vocabulary": "nextn.embed_tokens.weight", "ssm_norm": "ssm_norm.weight",
}  # fmt: skip
"""Traits of `tests/layouts` by the tensors that tell them."""
WITHOUT = {"tied": "output.weight"}


@dataclass(frozen=True, slots=True)
class CatalogKeys:
    """What the tensors of a catalogue's model follow from; keys without the architecture."""

    architecture: str
    values: Mapping[str, Value]
    n_vocab: int
    traits: frozenset[str]


def catalog_keys(name: str) -> CatalogKeys:
    snapshot = find_entry(name).snapshot
    prefix = f"{snapshot.architecture}."
    values = {key.removeprefix(prefix): value for key, value in snapshot.values.items()}
    values.pop("vocab_size", None)
    stems = {_stem(tensor.name) for tensor in snapshot.tensors()}
    traits = {trait for trait, stem in TRAITS.items() if stem in stems}
    traits |= {trait for trait, stem in WITHOUT.items() if stem not in stems}
    if snapshot.architecture == "gemma4":
        traits.remove("rope_freqs")  # its layout has them without being asked
        traits |= {"keys_as_values"} if _lacks_values(snapshot.kinds) else set()
    return CatalogKeys(snapshot.architecture, values, snapshot.n_vocab, frozenset(traits))


def changed_entry(
    name: str, changes: Mapping[str, Value | None], n_vocab: int | None = None
) -> CatalogEntry:
    """A model of the catalogue with other keys; a key of None is gone."""
    entry, keys = find_entry(name), catalog_keys(name)
    values = {key: v for key, v in {**keys.values, **changes}.items() if v is not None}
    n_vocab = n_vocab or keys.n_vocab
    types = {_stem(tensor.name): tensor.type for tensor in entry.snapshot.tensors()}
    shapes = LAYOUTS[keys.architecture].tensors(
        Keys(keys.architecture, values, n_vocab, keys.traits)
    )
    file = replace(
        entry.header("Q8_0"),
        values={
            "general.architecture": keys.architecture,
            f"{keys.architecture}.vocab_size": n_vocab,
        }
        | {_full(keys.architecture, key): value for key, value in values.items()},
        array_lengths={"tokenizer.ggml.tokens": n_vocab},
        tensors=tuple(TensorInfo(each, dims, types[_stem(each)], 0, 0) for each, dims in shapes),
    )
    return replace(entry, snapshot=snapshot_of(file))


def _stem(name: str) -> str:
    return name.split(".", 2)[2] if name.startswith("blk.") else name


def _lacks_values(kinds: list[list[str]]) -> bool:
    return any(all(not row.startswith("attn_v.") for row in rows) for rows in kinds)


def _full(architecture: str, key: str) -> str:
    return key if key.startswith(UNPREFIXED) else f"{architecture}.{key}"


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
        head[_full(architecture, key)] = plain
    return read_model(write(path, header(head, tensors), data_bytes=offset))
