"""The usual types of keys and values, and their order where nothing was measured.

The order is one guess for all models. Published figures say how far off it can be: the mean KL of a
q8_0 cache is 0.04 on one family and 0.38 on another. What was measured on the model itself comes
before it wherever there is any.
"""

from engine.configuration import KVTypes

WHOLE = KVTypes("f16", "f16")
FAST_PAIRS = (WHOLE, KVTypes("q8_0", "q8_0"), KVTypes("q4_0", "q4_0"))
"""Pairs with a kernel in a default CUDA build, the best first. bf16 weighs what f16 does, so a
search that does not start from it gains nothing by trying it."""

COARSENESS = {
    "f32": 0.0, "f16": 0.0, "bf16": 0.0, "q8_0": 0.1, "q5_1": 0.5, "q5_0": 0.6, "q4_1": 0.9,
    "iq4_nl": 0.9, "q4_0": 1.0,
}  # fmt: skip
"""What a cache type costs by guess, in halvings of the context: 8 bits are as good as free, 4 bits
must at least double the context."""

KEY_SHARE = 2 / 3
"""Weight of the keys in a pair: they suffer more from few bits than values do."""


def guessed_cost(types: KVTypes) -> float:
    """What a pair costs by guess, in halvings of the context; 0 loses nothing."""
    return KEY_SHARE * COARSENESS[types.k] + (1 - KEY_SHARE) * COARSENESS[types.v]
