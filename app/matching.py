"""Whether a name or a command is meant by what is typed."""

import re

MIN_LETTERS = 3
"""Letters from which they need not stand together: fewer are in nearly every name."""

TYPED_COMMAND = re.compile(r"/([a-z-]*|[a-z-]+ [\w.-]*)", re.IGNORECASE)
"""Text that is a command with at most one word after it, not a message such as a path."""


def is_meant(name: str, typed: str) -> bool:
    """Whether `name` contains `typed`, or its letters in their order; both in small letters.

    This takes linear time, unlike `textual.fuzzy`, which scores each choice of repeated letters.
    """
    letters = iter(name)
    in_order = len(typed) >= MIN_LETTERS and all(letter in letters for letter in typed)
    return in_order or typed in name
