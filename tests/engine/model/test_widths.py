from engine.model.ggml_types import GGML_TYPES
from engine.model.gguf import TensorInfo
from engine.model.widths import Widths, widths_of


def table(**matrices: tuple[int, ...]) -> Widths:
    tensors = (
        TensorInfo(f"blk.0.{name}.weight", shape, GGML_TYPES[0], 0, 0)
        for name, shape in matrices.items()
    )
    return widths_of(tuple(tensors))


def test_a_gate_or_a_doubled_projection_makes_a_gated_block() -> None:
    plain = table(ffn_up=(64, 256), ffn_down=(256, 64), ffn_norm=(64,))
    assert (plain.feed_forward, plain.is_gated, plain.is_parallel) == (256, False, False)
    assert table(ffn_up=(64, 256), ffn_gate=(64, 256), ffn_down=(256, 64)).is_gated
    assert table(ffn_up=(64, 512), ffn_down=(256, 64)).is_gated


def test_queries_keys_and_values_are_found_apart_fused_and_latent() -> None:
    apart = table(attn_q=(64, 96), attn_k=(64, 32), attn_v=(64, 16))
    assert (apart.query, apart.key_value) == (96, 48)
    assert table(attn_qkv=(64, 144)).query == 144
    latent = table(attn_q_b=(32, 384), attn_kv_a_mqa=(64, 40), attn_kv_b=(32, 512))
    assert (latent.query, latent.key_value) == (384, 512)


def test_experts_and_recurrent_blocks_are_measured_by_their_projections() -> None:
    experts = table(ffn_gate_inp=(64, 8), ffn_down_exps=(48, 64, 8), ffn_gate_exps=(64, 48, 8))
    assert (experts.expert, experts.is_expert_gated) == (48, True)
    assert table(ssm_in=(64, 256), ssm_conv1d=(4, 128)).state_input == 256
    delta = table(attn_qkv=(64, 300), attn_gate=(64, 100), ssm_conv1d=(4, 300))
    assert delta.gated_delta_net == 300
    mixed = table(time_mix_key=(64, 64), time_mix_lerp_fused=(64, 1, 1, 5))
    assert (mixed.token_mix, mixed.n_mixed) == (64, 5)


def test_layers_may_differ_and_the_widest_counts() -> None:
    tensors = [
        TensorInfo(f"blk.{i}.ffn_down.weight", (width, 64), GGML_TYPES[0], 0, 0)
        for i, width in enumerate((128, 512, 256))
    ]
    assert widths_of(tuple(tensors)).feed_forward == 512
