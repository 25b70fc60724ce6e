"""Which tensors of a file are loaded, and patterns of those that go to a device of their own."""

from pathlib import Path

import pytest

from engine.configuration import Configuration, TensorOverride
from engine.errors import PresetError
from engine.memory.hardware import Device
from engine.memory.placement import place
from engine.memory.weights import MAX_LAYERS, expert_pattern, override_rules
from engine.model.gguf import read_gguf
from tests.support.gguf_files import header, write

MATRIX_BYTES = 64 * 96 * 4


@pytest.mark.parametrize(
    "pattern",
    [
        "(.*)*(.*)*(.*)*X", "(a|aa)+$", "((a*))*", "((a*)*)", "(?:x{2,3}){4,}", "(a?)*",
        "a?" * 30 + "a" * 30, "(a|aa)" * 30, ".*.*.*.*X", "x" * 10_000,
    ],
)  # fmt: skip
def test_a_pattern_that_may_be_tried_in_countless_ways_is_refused(pattern: str) -> None:
    with pytest.raises(PresetError, match="too complex to match"):
        override_rules((TensorOverride(pattern),), 0)


@pytest.mark.parametrize(
    "pattern",
    [
        r"blk\.(1[0-9]|2.*)\.ffn_.*_exps", r"\.ffn_(up|down|gate|gate_up)_(ch|)exps",
        r"blk\.[0-9]+\.attn.*weight", "[+*?]+", "(?P<name>b)+", r"\(.*\)+",
        f"blk\\.({'|'.join(map(str, range(80)))})\\.ffn_(up|down|gate)_(ch|)exps.*",
    ],
)  # fmt: skip
def test_patterns_as_people_write_them_are_taken(pattern: str) -> None:
    assert override_rules((TensorOverride(pattern),), 0)


def test_experts_of_more_layers_than_llama_cpp_takes_are_all_experts() -> None:
    assert expert_pattern(10**12) == expert_pattern(MAX_LAYERS) == expert_pattern(-1)
    assert expert_pattern(2) == r"blk\.(0|1)\.ffn_(up|down|gate|gate_up)_(ch|)exps"


@pytest.mark.parametrize(
    ("architecture", "names", "n_loaded"),
    [
        ("hy_v3", ["token_embd", "blk.1.nextn.embed_tokens", "blk.1.nextn.shared_head_head"], 3),
        ("hy_v3", ["token_embd", "blk.1.nextn.eh_proj", "blk.1.attn_q"], 1),
        ("glm-dsa", ["token_embd", "blk.1.exp_probs_b", "blk.1.nextn.embed_tokens"], 2),
        ("t5", ["token_embd", "dec.blk.0.cross_attn_rel_b", "dec.blk.0.attn_q"], 2),
        ("codeshell", ["output"], 2),
        ("codeshell", ["token_embd", "output"], 2),
    ],
)
def test_weights_are_the_tensors_that_llama_cpp_loads(
    architecture: str, names: list[str], n_loaded: int, tmp_path: Path
) -> None:
    tensors = [
        (f"{name}.weight", (64, 96), 0, index * MATRIX_BYTES) for index, name in enumerate(names)
    ]
    values = {
        "general.architecture": architecture,
        f"{architecture}.block_count": 2,
        f"{architecture}.nextn_predict_layers": 1,
    }
    data_bytes = len(names) * MATRIX_BYTES
    file = read_gguf(write(tmp_path / "m.gguf", header(values, tensors), data_bytes=data_bytes))
    cpu = Device("CPU", "cpu", 1, 1)
    found = place(file, Configuration(file.path, 0, use_mmap=False), (cpu,)).weight_bytes
    assert found == {cpu: n_loaded * MATRIX_BYTES}
