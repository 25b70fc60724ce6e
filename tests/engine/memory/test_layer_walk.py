"""Walks through layers; expected are the buffers of llama.cpp 0c1e57098 without their inputs.

Its dry run was asked with an allocator that named what lives at the peak.
"""

from dataclasses import replace

import pytest

from engine.memory.kv_cache import CacheShape
from engine.memory.layer_tensors import (
    AttentionTensors,
    ExpertTensors,
    LayerTensors,
    walked_layers,
)
from engine.memory.layer_walk import Start, walked_bytes
from engine.model.architecture import Architecture
from engine.model.catalog import find_entry

SHAPE = CacheShape(n_ctx=4096, n_ubatch=512, type_k="f16", type_v="f16")
ROW = 2048 * 4
"""One element of every token, of 2,048."""

NORMED_QUERIES = LayerTensors(
    hidden=8388608,
    attention=AttentionTensors(query=16777216, key=2097152, value=2097152, result=16777216),
    inner=33554432,
)
TURNED_ROW = LayerTensors(
    hidden=576 * ROW,
    attention=AttentionTensors(
        query=1728 * ROW, key=1728 * ROW, value=1728 * ROW, result=1728 * ROW,
        is_fused=True, is_key_turned=True, is_value_turned=True,
    ),
    inner=2304 * ROW,
    is_gated=False,
)  # fmt: skip
NORMED_BEHIND = LayerTensors(
    hidden=25165824,
    attention=AttentionTensors(query=25165824, key=25165824, value=25165824, result=25165824),
    inner=50331648,
    is_normed_behind=True,
)
SHARED_EXPERT = LayerTensors(
    hidden=10485760,
    attention=AttentionTensors(query=10485760, key=2621440, value=2621440, result=10485760),
    experts=ExpertTensors(262144, 2048, inner=2621440, outer=10485760, shared=2621440),
)
COPIED_ROW = LayerTensors(
    hidden=589824,
    attention=AttentionTensors(
        query=589824, key=589824, value=589824, result=589824, is_fused=True, is_copied=True
    ),
    experts=ExpertTensors(4096, 512, inner=4718592, outer=1179648),
)


@pytest.mark.parametrize(
    ("layer", "n_tokens", "expected"),
    [
        (NORMED_QUERIES, 256, 134218752),
        (TURNED_ROW, 2048, 94380032),
        (NORMED_BEHIND, 1024, 176164864),
        (SHARED_EXPERT, 512, 50333696),
        (COPIED_ROW, 64, 15925504),
    ],
)
def test_layers_take_what_llama_cpp_s_allocator_gives_them(
    layer: LayerTensors, n_tokens: int, expected: int
) -> None:
    start = Start(below=4 * n_tokens, is_above=True)
    assert walked_bytes((layer,) * 8, start, 32, is_last=True) == expected


def test_only_attention_of_the_last_layer_is_there_for_all_tokens() -> None:
    start = Start(below=0, is_above=True)
    alone = walked_bytes((NORMED_QUERIES,), start, 32, is_last=True)
    assert alone < walked_bytes((NORMED_QUERIES,), start, 32, is_last=False)


def test_hidden_states_below_the_inputs_make_room_for_others() -> None:
    below = Start(below=NORMED_QUERIES.hidden, is_above=False)
    kept = Start(below=0, is_above=False)
    layers = (NORMED_QUERIES,) * 4
    whole = walked_bytes(layers, below, 128, is_last=False)
    assert whole <= NORMED_QUERIES.hidden + walked_bytes(layers, kept, 128, is_last=False)


def test_a_kernel_s_copies_lie_behind_its_result_alone() -> None:
    layer = NORMED_QUERIES
    assert layer.attention is not None
    copying = replace(layer, attention=replace(layer.attention, kernel_copies=10**9))
    start = Start(below=0, is_above=True)
    states = layer.hidden * 2 + layer.attention.query + layer.attention.result
    found = walked_bytes((copying,) * 2, start, 128, is_last=True)
    assert 10**9 + states <= found <= 10**9 + 2 * states


def architecture(name: str) -> Architecture:
    return find_entry(name).model().architecture


def test_latent_and_recurrent_models_are_not_walked() -> None:
    for name in ("deepseek-v3", "qwen3-next-80b-a3b", "gemma-3n-e4b"):
        assert walked_layers(architecture(name), SHAPE, on_gpu=False) == ()


def test_leading_layers_have_a_dense_block_and_the_others_experts() -> None:
    layers = walked_layers(architecture("glm-4.5-air"), SHAPE, on_gpu=False)
    assert [layer.experts is None for layer in layers[:3]] == [True, False, False]


def test_every_fourth_layer_of_smollm3_is_not_rotated() -> None:
    layers = walked_layers(architecture("smollm3-3b"), SHAPE, on_gpu=False)
    rotated = [layer.attention is not None and layer.attention.is_remade for layer in layers[:8]]
    assert rotated == [True, True, True, False, True, True, True, False]


def test_without_flash_attention_scores_are_stored_and_values_padded() -> None:
    off = replace(SHAPE, flash_attention=False)
    (layer, *_) = walked_layers(architecture("llama-3.1-8b"), off, on_gpu=False)
    assert layer.attention is not None
    assert layer.attention.scores == 512 * 4 * 32 * 4096
    assert layer.attention.stored_value == layer.attention.value
    (layer, *_) = walked_layers(architecture("llama-3.1-8b"), SHAPE, on_gpu=False)
    assert layer.attention is not None
    assert layer.attention.scores == 0


def test_a_gpu_copies_caches_that_its_kernel_does_not_read() -> None:
    packed = replace(SHAPE, type_k="q8_0", type_v="q8_0")
    (layer, *_) = walked_layers(architecture("llama-3.1-8b"), packed, on_gpu=True)
    assert layer.attention is not None
    assert layer.attention.kernel_copies == 2 * 1024 * 4096 * 2
    (layer, *_) = walked_layers(architecture("llama-3.1-8b"), packed, on_gpu=False)
    assert layer.attention is not None
    assert layer.attention.kernel_copies == 0
