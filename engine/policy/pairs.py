"""The usual K/V types, and their order without measurements.

The order is one guess for all models and can be far off: the mean KL of a q8_0 cache is 0.04 on one
family and 0.38 on another. A measurement of the model takes precedence.
"""

from engine.configuration import KVTypes

WHOLE = KVTypes("f16", "f16")
FAST_PAIRS = (WHOLE, KVTypes("q8_0", "q8_0"), KVTypes("q4_0", "q4_0"))
"""Pairs with a kernel in a default CUDA build, the best first; bf16 is as large as f16."""

COARSENESS = {
    "f32": 0.0, "f16": 0.0, "bf16": 0.0, "q8_0": 0.1, "q5_1": 0.5, "q5_0": 0.6, "q4_1": 0.9,
    "iq4_nl": 0.9, "q4_0": 1.0,
}  # fmt: skip
"""Guessed cost of a type in halvings of the context: 8 bits are nearly free, 4 bits must at least
double the context."""

KEY_SHARE = 2 / 3
"""Weight of K in a pair: keys need more bits than values."""


def guessed_cost(types: KVTypes) -> float:
    """Guessed cost of a pair in halvings of the context; 0 is lossless."""
    return KEY_SHARE * COARSENESS[types.k] + (1 - KEY_SHARE) * COARSENESS[types.v]
