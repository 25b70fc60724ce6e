"""Where two replies stop being the same."""

from collections.abc import Sequence as Tokens


def first_divergence(first: Tokens[int], second: Tokens[int]) -> int | None:
    """Give the index of the first token that differs, None where the replies are the same.

    Where one reply is the start of the other, that is the length of the shorter one: it ended
    where the other went on.
    """
    pairs = zip(first, second, strict=False)
    differing = (index for index, (one, other) in enumerate(pairs) if one != other)
    shorter = min(len(first), len(second))
    return next(differing, None if len(first) == len(second) else shorter)
