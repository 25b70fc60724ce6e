"""The places of a graph in numbers; how close they come is in test_recorded_dry_runs."""

from dataclasses import replace

from engine.memory.compute import (
    attention_bytes,
    compute_bounds,
    layers_bytes,
    logits_bytes,
    mask_bytes,
)
from engine.memory.kv_cache import CacheShape
from engine.memory.units import MIB
from engine.model.architecture import Architecture
from tests.support.made_models import shape_named

SHAPE = CacheShape(n_ctx=4096, n_ubatch=512, type_k="f16", type_v="f16")


def architecture(name: str) -> Architecture:
    return shape_named(name).model().architecture


def test_logits_take_a_row_of_the_vocabulary_for_each_output() -> None:
    llama = architecture("llama-3.1-8b")
    row = (128_256 + 2 * 4096) * 4
    assert logits_bytes(llama, SHAPE, 1) == row
    assert logits_bytes(llama, SHAPE, 17) == 17 * row
    assert logits_bytes(llama, SHAPE, 2048) == 512 * row


def test_a_dense_layer_is_as_wide_as_its_feed_forward_block() -> None:
    llama = architecture("llama-3.1-8b")
    mask = 512 * 4096 * 2
    assert mask_bytes(llama, SHAPE) == mask
    assert layers_bytes(llama, SHAPE) == 512 * (3 * 14336 + 4 * 4096) * 4 + mask


def test_scores_are_stored_without_flash_attention() -> None:
    llama = architecture("llama-3.1-8b")
    off = replace(SHAPE, flash_attention=False)
    width = 2 * 4096 + 2 * 1024 + 2 * 4096
    scores = 32 * 4096
    assert attention_bytes(llama, off) == 512 * (width + scores) * 4 + 512 * 4096 * 4


def test_sliding_layers_have_a_mask_of_their_own() -> None:
    gemma = architecture("gemma-3-12b")
    assert mask_bytes(gemma, SHAPE) == 512 * (4096 + 1536) * 2


def test_experts_outputs_take_room_where_they_are_wider_than_gate_and_up() -> None:
    wide = architecture("qwen3-30b-a3b")
    inner, outer = 8 * 768, 8 * 2048
    assert layers_bytes(wide, SHAPE) == 512 * (3 * inner + outer + 5 * 2048) * 4 + 512 * 4096 * 2
    even = architecture("gpt-oss-20b")
    inner = 4 * 2880
    mask = 512 * (4096 + 768) * 2
    assert layers_bytes(even, SHAPE) == 512 * (3 * inner + 4 * 2880) * 4 + mask


def test_a_decoder_holds_what_the_encoder_gives_for_the_context_of_the_header() -> None:
    llama = architecture("llama-3.2-1b")
    short = replace(llama, name="t5", has_position_bias=True, n_ctx_train=512)
    long = replace(short, n_ctx_train=8192)
    added = (8192 - 512) * 2048 * 4
    assert attention_bytes(long, SHAPE) - attention_bytes(short, SHAPE) == added
    off = replace(SHAPE, flash_attention=False, n_ctx=256, n_ubatch=64)
    crossed = attention_bytes(long, off) - attention_bytes(short, off)
    assert crossed > 4 * added, "keys, values and scores across are stored without a kernel"


def test_a_buffer_may_be_off_by_three_hidden_states_and_more_where_less_is_known() -> None:
    llama, holes = architecture("llama-3.1-8b"), 3 * 512 * 4096 * 4 + MIB
    assert compute_bounds(llama, SHAPE, 1000 * MIB, "cpu") == (
        900 * MIB - holes, 1100 * MIB + holes,
    )  # fmt: skip
    assert compute_bounds(llama, SHAPE, 4 * MIB, "cpu")[0] == 0
    widths = [
        high - low
        for low, high in (
            compute_bounds(architecture(name), SHAPE, 1000 * MIB, place)
            for name, place in (
                ("llama-3.1-8b", "gpu"), ("qwen3-30b-a3b", "gpu"), ("llama-3.1-8b", "visited gpu"),
                ("qwen3-next-80b-a3b", "visited gpu"),
            )
        )
    ]  # fmt: skip
    assert widths == sorted(widths)
    assert len(set(widths)) == 4
