"""What each layer of a model does in its graph that its tensor table does not tell.

Read off `src/models/*.cpp` and `src/llama-graph.cpp` of llama.cpp 0c1e57098.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from engine.memory.cuda_kernels import attending_layers
from engine.memory.kv_cache import CacheShape
from engine.memory.layer_tensors import is_turned, is_value_turned, span_of
from engine.model.architecture import Architecture
from engine.model.families import MAPPED_FEATURES
from engine.model.gguf import GgufFile
from engine.model.layers import Layer

UNROTATED = frozenset(
    {
        "bloom", "gpt2", "jais", "jamba", "mpt", "nemotron_h", "nemotron_h_moe", "refact",
        "starcoder",
    }
)  # fmt: skip
"""Architectures that know positions by other means than rotation."""
UNROTATED_DENSE = frozenset(
    {"afmoe", "cohere2", "cohere2moe", "exaone4", "exaone-moe", "llama4", "muse-glimmer"}
)
"""Architectures that rotate in sliding layers alone."""
COPIED_ROWS = frozenset({"minimax-m2", "olmo2", "olmoe"})
"""Architectures that copy queries, keys and values out of one row (`build_qkv`)."""
PROJECTED_FIRST = frozenset({"phi2"})
"""Architectures that project attention before the block beside it."""
HIDDEN_FIRST = frozenset({"jamba", "lfm2", "lfm2moe"})
"""Architectures that add what a layer took from other tokens to the hidden states."""
HIDDEN_LAST = frozenset({"falcon", "plamo"})
"""Architectures that add hidden states behind attention and the block beside it."""
MIXED = frozenset(
    {
        "arwkv7", "falcon-h1", "granitehybrid", "jamba", "lfm2", "lfm2moe", "mamba", "mamba2",
        "nemotron_h", "nemotron_h_moe", "qwen3next", "qwen35", "qwen35moe", "rwkv6", "rwkv6qwen2",
        "rwkv7",
    }
)  # fmt: skip
"""Architectures with states whose layers are walked."""
LOOPED = frozenset({"hrm_text", "nanbeige"})
"""Architectures that run their layers several times."""
STACKS: tuple[Literal["low"], Literal["high"]] = ("low", "high")
"""The two stacks of HRM, in a file's order."""
NORMED_WHOLE = frozenset(
    {
        "cohere2moe", "gemma4", "gpt-oss", "hy_v3", "nemotron_h", "nemotron_h_moe", "qwen35",
        "qwen35moe", "qwen3next", "step35",
    }
)  # fmt: skip
"""Architectures whose last states are all normed, before the rows with logits are taken."""
UNCUT = NORMED_WHOLE | {"gemma3n", "hrm_text"}
"""Architectures whose last layer goes on with all rows behind its attention."""
NO_ATTENTION = Layer(0, 0, 0)
UNROTATED_EVERY = {"smollm3": 4}
"""Architectures that leave every n-th layer as it is."""
PARALLEL_RESIDUAL = frozenset({"gptneox"})
"""Architectures that add attention and block of hidden states that are normed apart."""
HEAD_GATES = frozenset({"spark2_5", "step35"})
"""Architectures that gate heads of attention, and not elements."""
QUERY_GATES = frozenset({"qwen3next", "qwen35", "qwen35moe"})
"""Architectures that gate what attention gives by a half of what makes queries."""
UNUSED_FACTORS = frozenset({"pangu-embedded"})
"""Architectures that load factors of rotation and use none."""
NORMED_WEIGHTS = frozenset(
    {
        "afmoe", "arctic", "bailingmoe2", "cohere2moe", "gpt-oss", "laguna", "lfm2moe", "mellum",
        "qwen3next", "qwen35moe",
    }
)  # fmt: skip
"""Architectures whose weights of chosen experts are made to sum up to one."""
REPEATED_KEYS = frozenset({"rwkv6qwen2"})
"""Architectures that repeat keys and values for all heads."""
DENSE = frozenset({"refact"})
"""Architectures that load experts and run none."""
UNWALKED = frozenset({"deci", "deepseek2", "minicpm3"})
"""Architectures whose layers lack parts or are latent without saying so."""
COPIED_PARTS = frozenset({"gemma4"})
"""Architectures that copy them so, and look at the copies head by head."""
NORMED_VALUES = frozenset({"gemma3n", "gemma4"})
"""Architectures that norm values, too."""
SLIDING_FACTORLESS = frozenset({"gemma4"})
"""Architectures that rotate in dense layers alone by factors."""
N_SPARSE = {"gemma3n": 10}
"""Architectures whose first layers keep a few activations."""


@dataclass(frozen=True, slots=True)
class Loop:
    """What happens around a layer of a model that runs its layers several times."""

    begins: bool = False
    """Whether it takes the sum of low and high states (HRM)."""
    ends: Literal["low", "high", "normed", ""] = ""
    """Which states its result is, normed; or that it is normed as behind the last (Nanbeige)."""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What a layer does that its tensor table does not tell."""

    span: str = "dense"
    """Which mask and cache it takes: `dense`, or `sliding`."""
    is_in_batch: bool = False
    """Whether keys and values are read as they were made, and no cache."""
    is_flash: bool = True
    """Whether attention is one tensor, and scores are none."""
    is_transposed_late: bool = False
    """Whether values are transposed after they were read, and not as they are stored."""
    is_padded: bool = False
    """Whether values are padded to those of the widest layer."""
    casts_keys: bool = False
    """Whether f32 keys are cast for a kernel."""
    casts_values: bool = False
    is_key_first: bool = False
    """Whether keys are made before values: so where some layers slide."""
    is_copied: bool = False
    """Whether queries, keys and values are copied out of the row that one matrix gives."""
    is_rotated: bool = True
    is_key_turned: bool = False
    """Whether queries and keys are turned by a Hadamard matrix, for a quantised cache."""
    is_value_turned: bool = False
    is_projected_first: bool = False
    """Whether attention is projected before the block beside it, and not behind it."""
    is_hidden_last: bool = False
    """Whether hidden states are added behind both."""
    is_hidden_first: bool = False
    """Whether what a layer took is added to its hidden states, and not these to it."""
    is_gated_at_once: bool = False
    """Whether one matrix gives both activations of a gated block."""
    is_parallel_residual: bool = False
    """Whether attention and block each take the hidden states, normed apart."""
    gates_heads: bool = False
    """Whether results of attention are gated head by head."""
    has_factors: bool = False
    """Whether rotation takes a tensor of factors."""
    norms_weights: bool = False
    """Whether weights of chosen experts are made to sum up to one."""
    runs_experts: bool = True
    copies_parts: bool = False
    """Whether they are copied so, and looked at head by head before they are normed."""
    shares_cache: bool = False
    """Whether the cache is another layer's."""
    norms_values: bool = False
    is_sparse: bool = False
    """Whether the first activations of a block are cut (Gemma 3n)."""
    loop: Loop | None = None
    image_row: Literal["before", "behind", ""] = ""
    """Where a row of an image's features is added to the hidden states."""
    gates_queries: bool = False
    """Whether one matrix gives queries and gates of what they attend to."""
    repeats_keys: bool = False
    """Whether keys and values of a few heads are repeated for all (RWKV)."""


def walked_layers(
    architecture: Architecture, file: GgufFile, shape: CacheShape, *, is_late: bool
) -> tuple[tuple[LayerKind, Layer], ...]:
    """The layers of a model; empty where their order is not known."""
    if not _is_walked(architecture):
        return ()
    layers = architecture.layers
    if architecture.attends_in_batch:
        layers = dict(enumerate(attending_layers(architecture)))
    name = architecture.name
    period = UNROTATED_EVERY.get(name, architecture.n_layers + 1)
    loops = looped_layers(architecture, file)
    kinds: dict[tuple[object, ...], tuple[LayerKind, Layer]] = {}
    found = []
    for index in range(architecture.n_layers):
        owner = architecture.sharing.get(index, index)
        layer, may_rotate = layers.get(owner, NO_ATTENTION), (index + 1) % period > 0
        loop, is_sparse = loops.get(index), index < N_SPARSE.get(name, 0)
        takes_image = index in architecture.image_layers
        key = (id(layer), may_rotate, owner == index, is_sparse, loop, takes_image)
        if key not in kinds:
            kind = replace(
                _layer_kind(architecture, shape, layer, is_late=is_late),
                loop=loop,
                image_row=_image_row(architecture) if takes_image else "",
                is_sparse=is_sparse,
                shares_cache=owner != index,
            )
            kind = replace(kind, is_rotated=may_rotate and kind.is_rotated)
            kinds[key] = kind, layer  # equal layers are one object
        found.append(kinds[key])
    return tuple(found)


def _image_row(architecture: Architecture) -> Literal["before", "behind"]:
    return "before" if architecture.name in MAPPED_FEATURES else "behind"


def looped_layers(architecture: Architecture, file: GgufFile) -> dict[int, Loop]:
    """What happens around layers of a model that runs its layers several times."""
    n_layers = architecture.n_layers
    if architecture.name == "hrm_text":
        size = file.integer("hrm_text.hrm.layers_per_stack") or 1
        n_passes = 1 + (file.integer("hrm_text.hrm.l_cycles") or 1)
        return {
            index: Loop(
                index % size == 0,
                "" if (index + 1) % size else STACKS[index // size % n_passes == n_passes - 1],
            )
            for index in range(n_layers)
        }
    n_loops = file.integer("nanbeige.num_loops") or 1
    if n_loops == 1 or file.values.get("nanbeige.skip_loop_final_norm"):
        return {}
    n_once = n_layers // n_loops
    return {index: Loop(ends="normed") for index in range(n_once - 1, n_layers - 1, n_once)}


def weight_layer(loops: Sequence[Loop | None], index: int, n_named: int) -> int:
    """Whose weights a layer has: those of a layer before where they run several times."""
    stack = next((loop.ends for loop in loops[index:] if loop and loop.ends in STACKS), "")
    if not stack:
        return index % n_named
    size = n_named // len(STACKS)
    return STACKS.index(stack) * size + index % size


def _is_walked(architecture: Architecture) -> bool:
    n_attending = len(architecture.layers) + len(architecture.sharing)
    attends = n_attending == architecture.n_layers or architecture.attends_in_batch
    return (attends or architecture.name in MIXED) and not (
        architecture.is_latent
        or architecture.indexer
        or architecture.n_streams
        or architecture.has_position_bias
        or (architecture.states and architecture.name not in MIXED)
        or architecture.name in UNWALKED
    )


def _is_rotated(architecture: Architecture, layer: Layer) -> bool:
    if architecture.name in UNROTATED_DENSE and layer.window is None:
        return all(other.window is None for other in architecture.distinct_layers)
    return architecture.name not in UNROTATED


def _layer_kind(
    architecture: Architecture, shape: CacheShape, layer: Layer, *, is_late: bool
) -> LayerKind:
    in_batch, is_flash = architecture.attends_in_batch, shape.flash_attention
    widths = architecture.widths
    return LayerKind(
        span=span_of(layer),
        is_in_batch=in_batch,
        is_flash=is_flash,
        is_transposed_late=not is_flash and (in_batch or is_late),
        is_padded=not (is_flash or in_batch or is_late)
        and layer.v_width < architecture.v_width_max,
        casts_keys=is_flash and (in_batch or shape.type_k == "f32"),
        casts_values=is_flash and (in_batch or shape.type_v == "f32"),
        is_key_first=in_batch
        or any(other.window is not None for other in architecture.distinct_layers),
        is_copied=architecture.name in COPIED_ROWS,
        is_rotated=_is_rotated(architecture, layer),
        is_key_turned=not in_batch and is_turned(architecture, shape),
        is_value_turned=not in_batch and is_value_turned(architecture, shape),
        is_projected_first=architecture.name in PROJECTED_FIRST,
        is_hidden_last=architecture.name in HIDDEN_LAST,
        is_hidden_first=architecture.name in HIDDEN_FIRST,
        is_gated_at_once=widths.is_gated,
        is_parallel_residual=architecture.name in PARALLEL_RESIDUAL,
        gates_heads=architecture.name in HEAD_GATES,
        has_factors=architecture.name not in UNUSED_FACTORS
        and (architecture.name not in SLIDING_FACTORLESS or layer.window is None),
        norms_weights=architecture.name in NORMED_WEIGHTS,
        runs_experts=architecture.name not in DENSE,
        copies_parts=architecture.name in COPIED_PARTS | QUERY_GATES,
        norms_values=architecture.name in NORMED_VALUES,
        gates_queries=architecture.name in QUERY_GATES,
        repeats_keys=architecture.name in REPEATED_KEYS,
    )
