"""Patterns of tensors that go to a device of their own."""

import pytest

from engine.configuration import TensorOverride
from engine.errors import PresetError
from engine.memory.weights import MAX_LAYERS, expert_pattern, override_rules


@pytest.mark.parametrize(
    "pattern",
    [
        "(.*)*(.*)*(.*)*X", "(a|aa)+$", "((a*))*", "((a*)*)", "(?:x{2,3}){4,}", "(a?)*",
        "a?" * 30 + "a" * 30, "(a|aa)" * 30, ".*.*.*.*X", "x" * 10_000,
    ],
)  # fmt: skip
def test_a_pattern_that_may_be_tried_in_countless_ways_is_refused(pattern: str) -> None:
    with pytest.raises(PresetError, match="may take for ever"):
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
