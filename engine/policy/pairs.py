"""Pairs of cache types, and their order where nothing was measured.

The order is one guess for all models. Published figures say how far off it can be: the mean KL of a
q8_0 cache is 0.04 on one family and 0.38 on another. What was measured on the model itself comes
before it wherever there is any.
"""

from typing import get_args

from engine.configuration import KVTypeName
from engine.errors import PresetError
from engine.memory.kv_cache import kv_type
from engine.quality.records import CacheKind

Pair = tuple[KVTypeName, KVTypeName]
"""Types of the cached keys and of the cached values."""

WHOLE: Pair = ("f16", "f16")
FAST_PAIRS: tuple[Pair, ...] = (WHOLE, ("q8_0", "q8_0"), ("q4_0", "q4_0"))
"""Pairs with a kernel in a default CUDA build, the best first. bf16 weighs what f16 does, so a
search that does not start from it gains nothing by trying it."""

COARSENESS: dict[KVTypeName, float] = {
    "f32": 0.0, "f16": 0.0, "bf16": 0.0, "q8_0": 0.1, "q5_1": 0.5, "q5_0": 0.6, "q4_1": 0.9,
    "iq4_nl": 0.9, "q4_0": 1.0,
}  # fmt: skip
"""What a cache type costs by guess, in halvings of the context: 8 bits are as good as free, 4 bits
must at least double the context."""

KEY_SHARE = 2 / 3
"""Weight of the keys in a pair: they suffer more from few bits than values do."""


def guessed_cost(pair: Pair) -> float:
    """What a pair costs by guess, in halvings of the context; 0 loses nothing."""
    return KEY_SHARE * COARSENESS[pair[0]] + (1 - KEY_SHARE) * COARSENESS[pair[1]]


def bits_of(pair: Pair) -> tuple[float, float]:
    """Bits of one element of the keys and of the values, the block's scales included."""
    return kv_type(pair[0]).bits, kv_type(pair[1]).bits


def is_whole(pair: Pair) -> bool:
    """Whether neither keys nor values are packed."""
    return min(bits_of(pair)) >= kv_type("f16").bits


def parse_pair(text: str) -> Pair:
    """The pair of cache types of a text: `q8_0` for both, `q8_0/q4_0` for keys and values.

    Raises:
        PresetError: one of them is no cache type.
    """
    known: tuple[KVTypeName, ...] = get_args(KVTypeName)
    names = [part.strip().lower() for part in text.split("/")]
    found = [name for part in names for name in known if name == part]
    if len(found) != len(names) or len(names) > 2:
        raise PresetError(
            f"{text!r} is no cache type: write one of {', '.join(known)}, or two as in q8_0/q4_0"
        )
    return found[0], found[-1]


def pair_label(pair: Pair) -> str:
    """The text that a pair is parsed from."""
    return pair[0] if pair[0] == pair[1] else f"{pair[0]}/{pair[1]}"


def pair_of(kind: CacheKind) -> Pair | None:
    """A measured kind as llama.cpp's types; None where the kind is another backend's."""
    known: tuple[KVTypeName, ...] = get_args(KVTypeName)
    found = [name for part in (kind.type_k, kind.type_v) for name in known if name == part]
    return (found[0], found[1]) if len(found) == 2 else None


def kind_of(pair: Pair) -> CacheKind:
    """A pair as reports name it."""
    return CacheKind(*pair)
