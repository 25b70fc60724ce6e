"""Whether a name is meant by a few typed letters."""

MIN_LETTERS = 3
"""Letters from which they need not stand together: fewer are in nearly every name."""


def is_meant(name: str, typed: str) -> bool:
    """Whether `name` contains `typed`, or its letters in their order; both in small letters.

    This takes linear time, unlike `textual.fuzzy`, which scores each choice of repeated letters.
    """
    letters = iter(name)
    in_order = len(typed) >= MIN_LETTERS and all(letter in letters for letter in typed)
    return in_order or typed in name
