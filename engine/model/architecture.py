"""Dimensions that determine a model's memory, by llama.cpp's rules for its architecture."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from engine.errors import ModelFileError
from engine.model.architectures import Family, family_of
from engine.model.gguf import MAX_CACHED_MODELS, GgufFile, HeaderKeys, read_gguf
from engine.model.layers import (
    Layer,
    StateRow,
    compressor_states,
    has_indexer,
    head_dims,
    is_latent,
    layer_kinds,
    n_layers_with_cache,
    recurrent_states,
    windows,
    with_indexer,
)
from engine.model.tensor_table import Widths, widths_of


@dataclass(frozen=True, slots=True, eq=False)
class Architecture:
    """The numbers of a model that its memory depends on."""

    name: str
    n_layers: int  # layers that a main context runs
    n_blocks: int  # those of the file, with an MTP head: the number that `n_gpu_layers` counts
    n_ctx_train: int
    d_hidden: int
    n_heads: int
    n_vocab: int
    n_experts: int
    n_experts_used: int
    layers: dict[int, Layer]  # those that own a cache, by index
    states: dict[int, StateRow] = field(default_factory=dict)  # of recurrent layers, by index
    head_layers: dict[int, Layer] = field(default_factory=dict)  # of an MTP head, while it drafts
    rolls_back: bool = False  # whether recurrent states have rows to roll drafted tokens back
    is_latent: bool = False  # whether only keys are cached (MLA)
    needs_one_type: bool = False  # whether llama.cpp refuses different K/V types
    v_width_max: int = 0  # value elements of the widest layer, to which transposed ones are padded
    k_head_dims: tuple[int, ...] = ()  # of all layers; blocks of a quantised cache divide them
    v_head_dims: tuple[int, ...] = ()
    has_flash_attention: bool = True
    attends_in_batch: bool = False  # whether a token attends to its batch only, never to a cache
    has_position_bias: bool = False  # whether scores have a bias and are stored even with FA (T5)
    gives_all_logits: bool = False  # whether the graph computes logits of every token
    widths: Widths = field(default_factory=Widths)
    has_indexer: bool = False  # whether an indexer chooses the tokens that a layer attends to
    n_streams: int = 0  # streams of hidden states (hyper-connections, AltUp); 0 without
    layer_embedding_width: int = 0  # elements of a token's embeddings for all layers (Gemma 3n, 4)
    sharing: dict[int, int] = field(default_factory=dict)  # last layer -> whose cache it uses
    n_image_rows: int = 0  # rows of image features for each token (DeepStack of Qwen 3 VL)
    doubts: tuple[str, ...] = ()  # why figures are estimates
    distinct_layers: tuple[Layer, ...] = field(init=False)  # with a cache, without equal ones

    def __post_init__(self) -> None:
        kinds: dict[Layer, Layer] = {}
        same = {index: kinds.setdefault(layer, layer) for index, layer in self.layers.items()}
        object.__setattr__(self, "layers", same)  # equal layers are one object: fast to compare
        object.__setattr__(self, "distinct_layers", tuple(kinds))

    @property
    def family(self) -> Family:
        return family_of(self.name)

    @property
    def is_moe(self) -> bool:
        return self.n_experts > 0

    @property
    def streams_width(self) -> int:
        """Elements of one token in all streams of hidden states."""
        return self.n_streams * self.d_hidden

    @property
    def is_recurrent(self) -> bool:
        """Whether some layer has a state."""
        return bool(self.states)


@dataclass(frozen=True, slots=True)
class Model:
    """A model file and its architecture."""

    file: GgufFile
    architecture: Architecture


NOT_ALONE = {
    "adapter": "an adapter, which must be loaded with its model (--lora)",
    "draft head": "a draft head, which works only with its target",
    "projector": "a projector, which must be loaded with a language model (--mmproj)",
}
"""Files without a language model."""
MAX_LAYERS = 10_000  # llama.cpp has a limit of 512
NO_RULE = "is an architecture that kvchat does not know"
SETTLED_NS = 2_000_000_000
"""Age of a file after which any change has a new timestamp, as clocks are coarse."""
Stamp = tuple[int, ...]
_cached: dict[Path, tuple[tuple[Stamp, ...], Model]] = {}


def read_model(path: Path) -> Model:
    """Read header and architecture of a model file; the same object while the file is unchanged.

    Raises `ModelFileError` if it cannot be read, or lacks a key that its architecture needs.
    """
    stamps, model = _cached.get(path, ((), None))
    if model is not None and stamps == _stamps(model.file.paths):
        return model
    file = read_gguf(path)
    model = Model(file, architecture_of(file))
    stamps = _stamps(file.paths)
    if stamps and max(stamps)[0] < time.time_ns() - SETTLED_NS:
        for other in list(_cached)[: max(len(_cached) + 1 - MAX_CACHED_MODELS, 0)]:
            _cached.pop(other, None)
        _cached[path] = (stamps, model)
    return model


def _stamps(paths: tuple[Path, ...]) -> tuple[Stamp, ...]:
    """Time, size and inode of each file; empty if one is gone."""
    try:
        found = [path.stat() for path in paths]
    except OSError:
        return ()
    return tuple((each.st_mtime_ns, each.st_size, each.st_dev, each.st_ino) for each in found)


def architecture_of(file: GgufFile) -> Architecture:
    """The architecture of a header; raises `ModelFileError` if a required key is missing."""
    keys = HeaderKeys(file)
    family = keys.family
    n_blocks, n_layers = layer_counts(keys)
    d_hidden = keys.positive("embedding_length")
    n_named = n_blocks - family.has_router_layer  # a router's layer has one head of each
    routers = [1] * (n_blocks - n_named)
    named_heads = keys.per_layer("attention.head_count", n_named, default=[0] * n_named)
    heads = named_heads + routers
    kv_heads = keys.per_layer("attention.head_count_kv", n_named, default=named_heads) + routers
    spans, doubts = windows(keys, n_blocks)
    head_dim = d_hidden // heads[0] if heads[0] else 0
    dims, dense_dims = (head_dims(keys, head_dim, each) for each in (spans, [None] * n_blocks))
    is_mla = is_latent(keys)
    needs_one_type = is_mla or family.indexer == "compressed"  # only keys are cached

    def layer(index: int, dims: tuple[int, int], span: int | None) -> Layer:
        k_dim, v_dim = dims
        v_dim = 0 if needs_one_type else v_dim
        return Layer(kv_heads[index], k_dim, v_dim, heads[index], span)

    attending, recurrent = layer_kinds(keys, n_blocks, n_layers, kv_heads)
    n_owning = n_layers_with_cache(keys, n_blocks)
    n_used = keys.per_layer("expert_used_count", n_blocks, default=[0] * n_blocks)
    unknown = () if family.is_known else (f"{keys.name} {NO_RULE}",)
    return Architecture(
        name=keys.name,
        n_layers=n_layers,
        n_blocks=n_blocks,
        n_ctx_train=keys.positive("context_length"),
        d_hidden=d_hidden,
        n_heads=max(heads),
        n_vocab=file.n_vocab or keys.optional("vocab_size", 0),
        n_experts=keys.optional("expert_count", 0),
        n_experts_used=max(n_used),
        layers={
            index: with_indexer(keys, index, n_layers, layer(index, dims[index], spans[index]))
            for index in range(n_owning)
            if index in attending and family.has_cache
        },
        states=recurrent_states(keys, recurrent, d_hidden, heads[0])
        | compressor_states(keys, n_layers),
        head_layers={
            index: layer(index, dense_dims[index], None)
            for index in range(n_layers, n_blocks)
            if kv_heads[index] and not family.has_router_layer
        },
        rolls_back=family.rolls_back,
        is_latent=is_mla,
        needs_one_type=needs_one_type,
        v_width_max=max(n * v_dim for n, (_, v_dim) in zip(kv_heads, dims, strict=True)),
        k_head_dims=tuple(dict.fromkeys(k_dim for k_dim, _ in dims)),
        v_head_dims=tuple(dict.fromkeys(v_dim for _, v_dim in dims)),
        has_flash_attention=family.has_flash_attention,
        attends_in_batch=family.attends_in_batch or not family.has_cache,
        has_position_bias=family.has_position_bias,
        gives_all_logits=family.gives_all_logits,
        widths=widths_of(file.tensors),
        has_indexer=has_indexer(keys),
        n_streams=_n_streams(keys),
        layer_embedding_width=_layer_embedding_width(keys, n_blocks),
        sharing={
            index: n_owning - (1 if spans[index] is None else 2)
            for index in range(n_owning, n_blocks)
        },
        n_image_rows=_n_image_rows(keys),
        doubts=(*doubts, *unknown),
    )


def layer_counts(keys: HeaderKeys) -> tuple[int, int]:
    """All layers as llama.cpp counts them, and those of a main context.

    Raises `ModelFileError` for a file without a model, or with an impossible number of layers.
    """
    if not keys.name:
        raise ModelFileError(
            f"{keys.file.path.name} is not a model: its header has no general.architecture"
        )
    if keys.family.not_alone:
        raise ModelFileError(f"{keys.file.path.name} is {NOT_ALONE[keys.family.not_alone]}")
    n_blocks = keys.positive("block_count")
    if keys.family.loops == "named":
        n_blocks *= max(1, keys.optional("num_loops", 1))
    if n_blocks > MAX_LAYERS:
        raise keys.damaged(f"declares {n_blocks} layers, more than {MAX_LAYERS}")
    if keys.family.has_router_layer:
        return n_blocks + 1, n_blocks
    n_layers = n_blocks - keys.optional("nextn_predict_layers", 0)
    if n_layers < 1:
        raise ModelFileError(
            f"{keys.file.path.name} contains only an MTP head ({n_blocks} layers): choose "
            "the model file"
        )
    return n_blocks, n_layers


def _n_streams(keys: HeaderKeys) -> int:
    if (sharing := keys.family.sharing) is not None:
        return sharing.n_streams
    return keys.optional("hyper_connection.count", 0) if keys.family.has_streams else 0


def _n_image_rows(keys: HeaderKeys) -> int:
    if keys.family.image_rows == "stacked":
        return keys.optional("n_deepstack_layers", 0)
    rows = keys.file.integers(f"{keys.name}.deepstack_mapping") or ()
    return len({row for row in rows if row >= 0}) if keys.family.image_rows else 0


def _layer_embedding_width(keys: HeaderKeys, n_blocks: int) -> int:
    sharing = keys.family.sharing
    if sharing is None:
        return 0
    named = keys.optional("embedding_length_per_layer_input", 0)
    return n_blocks * (sharing.layer_embedding or named)
