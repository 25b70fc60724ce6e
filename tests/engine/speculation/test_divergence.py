"""Replies are compared token by token."""

import pytest

from engine.speculation.stats import first_divergence


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        ((), (), None),
        ((4, 5, 6), (4, 5, 6), None),
        ((4, 5, 6), (4, 7, 6), 1),
        ((4, 5, 6), (3, 5, 7), 0),
        ((4, 5), (4, 5, 6), 2),
        ((4, 5, 6), (), 0),
    ],
)
def test_replies_part_at_the_first_other_token_or_where_one_ends(
    first: tuple[int, ...], second: tuple[int, ...], place: int | None
) -> None:
    assert first_divergence(first, second) == place
    assert first_divergence(second, list(first)) == place
