"""What a model's layers keep, by llama.cpp's rules for each architecture."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.errors import ModelFileError
from engine.model.architectures import Family, family_of
from engine.model.gguf import MAX_LAYERS, MOST_HEADERS, GgufFile, HeaderKeys, read_gguf
from engine.model.layers import (
    HeadDims,
    Indexer,
    Layer,
    LayerKinds,
    StateRow,
    compressor_states,
    indexer_of,
    indexer_widths,
    layer_kinds,
    n_layers_with_cache,
    state_row,
    windows,
    with_compression,
    with_hash_layers,
)
from engine.model.tensor_table import Widths, widths_of


@dataclass(frozen=True, slots=True, eq=False)
class Architecture:
    """What the memory of a model depends on.

    `layers` are those that own a cache and `states` those that keep a recurrent state, by their
    index. `doubts` says why figures are estimates.
    """

    name: str
    n_layers: int
    """Layers that a main context runs."""
    n_blocks: int
    """Layers in the file, with those of a next-token head: what layers on the GPU count."""
    n_ctx_train: int
    d_hidden: int
    n_heads: int
    n_vocab: int
    n_experts: int
    n_experts_used: int
    layers: dict[int, Layer]
    states: dict[int, StateRow] = field(default_factory=dict)
    head_layers: dict[int, Layer] = field(default_factory=dict)
    """Layers of a next-token head: they keep a cache when it drafts (MTP)."""
    rolls_back: bool = False
    """Whether recurrent states keep rows to take drafted tokens back."""
    is_latent: bool = False
    """Whether keys alone are kept (MLA)."""
    needs_one_type: bool = False
    """Whether llama.cpp refuses K and V of different types."""
    v_width_max: int = 0
    """Value elements of the widest layer, by which transposed values are padded."""
    k_head_dims: tuple[int, ...] = ()
    """Sizes of the heads of all layers: what blocks of a quantised cache must divide."""
    v_head_dims: tuple[int, ...] = ()
    has_flash_attention: bool = True
    attends_in_batch: bool = False
    """Whether a token attends to its batch alone, and never to a cache."""
    has_position_bias: bool = False
    """Whether scores are biased by position, and stored even with flash attention (T5)."""
    gives_all_logits: bool = False
    """Whether the graph makes logits of every token."""
    widths: Widths = field(default_factory=Widths)
    indexer: Indexer | None = None
    """What sparse attention chooses tokens by."""
    n_streams: int = 0
    """Streams of hidden states (hyper-connections, AltUp); 0 where there is but one."""
    layer_embedding_width: int = 0
    """Elements of the embeddings that a token has for all layers (Gemma 3n and 4)."""
    sharing: dict[int, int] = field(default_factory=dict)
    """Last layers that use the cache of one before them, and which (Gemma 3n and 4)."""
    embeds_positions: bool = False
    """Whether positions have embeddings of their own (GPT-2)."""
    n_image_rows: int = 0
    """Rows of an image's features that a token brings along (DeepStack of Qwen 3 VL)."""
    doubts: tuple[str, ...] = ()
    distinct_layers: tuple[Layer, ...] = field(init=False)
    """The layers that own a cache, each kind once."""

    def __post_init__(self) -> None:
        kinds: dict[Layer, Layer] = {}
        same = {index: kinds.setdefault(layer, layer) for index, layer in self.layers.items()}
        object.__setattr__(self, "layers", same)  # equal layers are one object, quick to compare
        object.__setattr__(self, "distinct_layers", tuple(kinds))

    @property
    def family(self) -> Family:
        """What llama.cpp does for models of this architecture."""
        return family_of(self.name)

    @property
    def is_moe(self) -> bool:
        return self.n_experts > 0

    @property
    def streams_width(self) -> int:
        """Elements of one token that run beside the hidden states through all layers."""
        return self.n_streams * self.d_hidden

    @property
    def is_recurrent(self) -> bool:
        """Whether some layer keeps a state."""
        return bool(self.states)


@dataclass(frozen=True, slots=True)
class Model:
    """A model file and the architecture that its header describes."""

    file: GgufFile
    architecture: Architecture


NOT_ALONE = {
    "adapter": "an adapter: it runs beside the model that it was made for (--lora)",
    "draft head": "a draft head: it runs beside its target only",
    "projector": "a projector for images or sound: it runs beside a language model (--mmproj)",
}
"""Files that hold no language model of their own."""
SETTLED_NS = 2_000_000_000
"""Age from which another time of change shows that a file was changed again: clocks are coarse."""
Stamp = tuple[int, ...]
_kept: dict[Path, tuple[tuple[Stamp, ...], Model]] = {}


def read_model(path: Path) -> Model:
    """Header and architecture of a model file; of one that did not change the same object again.

    What is computed from a header is kept by the header, so that a new object for each question
    would fill those caches with equal ones.

    Raises:
        ModelFileError: the file cannot be read, or lacks a key that its architecture needs.
    """
    stamps, model = _kept.get(path, ((), None))
    if model is not None and stamps == _stamps(model.file.paths):
        return model
    file = read_gguf(path)
    model = Model(file, architecture_of(file))
    stamps = _stamps(file.paths)
    if stamps and max(stamps)[0] < time.time_ns() - SETTLED_NS:
        for other in list(_kept)[: max(len(_kept) + 1 - MOST_HEADERS, 0)]:
            _kept.pop(other, None)
        _kept[path] = (stamps, model)
    return model


def _stamps(paths: tuple[Path, ...]) -> tuple[Stamp, ...]:
    """What of each file changes with it; empty where one is gone."""
    try:
        found = [path.stat() for path in paths]
    except OSError:
        return ()
    return tuple((each.st_mtime_ns, each.st_size, each.st_dev, each.st_ino) for each in found)


def architecture_of(file: GgufFile) -> Architecture:
    """The architecture that a header describes.

    Raises:
        ModelFileError: a key is missing without which no figure can be given.
    """
    _check_is_model(file)
    keys = HeaderKeys(file)
    family = keys.family
    n_blocks, n_layers = layer_counts(keys)
    d_hidden = keys.positive("embedding_length")
    nothing = [0] * n_blocks
    heads, kv_heads = _heads(keys, n_blocks)
    dims = HeadDims(keys, d_hidden // heads[0] if heads[0] else 0)
    spans, doubts = windows(keys, n_blocks)
    kinds = layer_kinds(keys, n_blocks, n_layers, kv_heads)
    return Architecture(
        name=keys.name,
        n_layers=n_layers,
        n_blocks=n_blocks,
        n_ctx_train=keys.positive("context_length"),
        d_hidden=d_hidden,
        n_heads=max(heads),
        n_vocab=file.n_vocab or keys.optional("vocab_size", 0),
        n_experts=keys.optional("expert_count", 0),
        n_experts_used=max(keys.per_layer("expert_used_count", n_blocks, default=nothing)),
        layers=_cached_layers(keys, kinds, dims, heads, kv_heads, spans, n_layers),
        states=_states(keys, kinds, n_layers, d_hidden, heads[0]),
        head_layers=_head_layers(keys, dims, heads, kv_heads, n_layers),
        rolls_back=family.rolls_back,
        is_latent=dims.is_latent,
        needs_one_type=dims.is_latent or family.indexer == "compressed",
        v_width_max=max(map(dims.v_width, kv_heads, spans)),
        k_head_dims=dims.k_dims(spans),
        v_head_dims=dims.v_dims(spans),
        has_flash_attention=family.has_flash_attention,
        attends_in_batch=family.attends_in_batch or not family.has_cache,
        has_position_bias=family.has_position_bias,
        gives_all_logits=family.gives_all_logits,
        widths=widths_of(file.tensors),
        indexer=indexer_of(keys),
        n_streams=_n_streams(keys),
        layer_embedding_width=_layer_embedding_width(keys, n_blocks),
        sharing=_sharing(keys, spans),
        embeds_positions=any(t.name == "position_embd.weight" for t in file.tensors),
        n_image_rows=_n_image_rows(keys),
        doubts=(*doubts, *_doubts(keys)),
    )


def _check_is_model(file: GgufFile) -> None:
    if not file.architecture:
        raise ModelFileError(
            f"{file.path.name} names no architecture (general.architecture): it is not a model"
        )
    if (kind := family_of(file.architecture).not_alone) in NOT_ALONE:
        raise ModelFileError(f"{file.path.name} is {NOT_ALONE[kind]}")


def layer_counts(keys: HeaderKeys) -> tuple[int, int]:
    """The layers that llama.cpp counts, and those of them that a main context runs.

    Raises:
        ModelFileError: the file holds no model, or an impossible number of layers.
    """
    n_blocks = keys.n_blocks()
    if keys.family.has_router_layer:
        return n_blocks + 1, n_blocks
    if keys.family.loops == "named":
        n_blocks *= max(1, keys.optional("num_loops", 1))
        if n_blocks > MAX_LAYERS:
            raise ModelFileError(f"{keys.file.path.name} claims {n_blocks} looped layers")
    n_layers = n_blocks - keys.optional("nextn_predict_layers", 0)
    if n_layers < 1:
        raise ModelFileError(
            f"{keys.file.path.name} holds {n_blocks} layers of an MTP head only: choose "
            "the file of the model"
        )
    return n_blocks, n_layers


def _heads(keys: HeaderKeys, n_blocks: int) -> tuple[list[int], list[int]]:
    """Heads and key-value heads of each layer; a router's layer has one of each."""
    n_named = n_blocks - keys.family.has_router_layer
    heads = keys.per_layer("attention.head_count", n_named, default=[0] * n_named)
    kv_heads = keys.per_layer("attention.head_count_kv", n_named, default=heads)
    routers = [1] * (n_blocks - n_named)
    return [*heads, *routers], [*kv_heads, *routers]


def _sharing(keys: HeaderKeys, spans: list[int | None]) -> dict[int, int]:
    """The layer whose cache each of the last ones uses: the last of its kind that has one."""
    n_owning = n_layers_with_cache(keys, len(spans))
    return {
        index: n_owning - (1 if spans[index] is None else 2)
        for index in range(n_owning, len(spans))
    }


def _n_streams(keys: HeaderKeys) -> int:
    if (sharing := keys.family.sharing) is not None:
        return sharing.n_streams
    return keys.optional("hyper_connection.count", 0) if keys.family.n_stream_copies else 0


def _n_image_rows(keys: HeaderKeys) -> int:
    """The rows of an image's features that come with a token."""
    if keys.family.image_rows == "stacked":
        return keys.optional("n_deepstack_layers", 0)
    if not keys.family.image_rows:
        return 0
    rows = keys.file.integers(f"{keys.name}.deepstack_mapping") or ()
    return len({row for row in rows if row >= 0})


def _layer_embedding_width(keys: HeaderKeys, n_blocks: int) -> int:
    sharing = keys.family.sharing
    if sharing is None:
        return 0
    named = keys.optional("embedding_length_per_layer_input", 0)
    return n_blocks * (sharing.layer_embedding or named)


def _cached_layers(
    keys: HeaderKeys,
    kinds: LayerKinds,
    dims: HeadDims,
    heads: list[int],
    kv_heads: list[int],
    spans: list[int | None],
    n_layers: int,
) -> dict[int, Layer]:
    if not keys.family.has_cache:
        return {}
    n_owning = n_layers_with_cache(keys, len(kv_heads))
    found = {}
    for index in sorted(kinds.attending):
        if index >= n_owning:
            continue
        layer = dims.layer(kv_heads[index], heads[index], spans[index])
        k_width, v_width = indexer_widths(keys, index, n_layers, layer.v_head_dim)
        layer = replace(layer, indexer_k_width=k_width, indexer_v_width=v_width)
        found[index] = with_compression(keys, index, layer)
    return found


def _states(
    keys: HeaderKeys, kinds: LayerKinds, n_layers: int, d_hidden: int, n_heads: int
) -> dict[int, StateRow]:
    row = state_row(keys, d_hidden, n_heads)
    states = with_hash_layers(keys, dict.fromkeys(sorted(kinds.recurrent), row), d_hidden)
    return states | compressor_states(keys, n_layers)


def _head_layers(
    keys: HeaderKeys, dims: HeadDims, heads: list[int], kv_heads: list[int], n_layers: int
) -> dict[int, Layer]:
    """The layers of a next-token head: they attend to every token."""
    if keys.family.has_router_layer:
        return {}
    return {
        index: dims.layer(kv_heads[index], heads[index], None)
        for index in range(n_layers, len(kv_heads))
        if kv_heads[index]
    }


def _doubts(keys: HeaderKeys) -> tuple[str, ...]:
    """Why the cache of an architecture is not known exactly."""
    if not keys.family.is_known:
        return (f"{keys.name} is an architecture that kvchat has no rule for",)
    return ()
