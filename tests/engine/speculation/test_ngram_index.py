from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.predictors.ngram_index import NgramIndex, Occurrence

LINES = st.lists(st.integers(0, 2), max_size=40)


def scanned(line: list[int], order: int, reach: int) -> list[Occurrence]:
    found = []
    for at in range(len(line) - 1, order - 1, -1):
        n_agreed = 0
        while n_agreed < min(reach, at) and line[at - 1 - n_agreed] == line[-1 - n_agreed]:
            n_agreed += 1
        if n_agreed >= order:
            found.append(Occurrence(at, n_agreed))
    return found


@given(LINES, st.sampled_from([1, 2, 4]))
def test_the_index_finds_what_a_scan_finds(line: list[int], order: int) -> None:
    places = NgramIndex((1, 2, 4), reach=6)
    places.append(line)
    assert list(places.of_order(order)) == scanned(line, order, 6)


@given(LINES, LINES, LINES)
def test_a_line_that_became_another_left_no_trace(
    shared: list[int], old: list[int], new: list[int]
) -> None:
    places = NgramIndex((1, 3), reach=6)
    places.append([*shared, *old])
    places.replace([*shared, *new])
    for order in (1, 3):
        assert list(places.of_order(order)) == scanned([*shared, *new], order, 6)


@given(st.lists(st.integers(0, 1), min_size=60, max_size=120), st.integers(16, 40))
def test_only_the_newest_ngrams_are_indexed(line: list[int], n_indexed: int) -> None:
    places = NgramIndex((2,), reach=3, n_indexed=n_indexed)
    for token in line:
        places.append([token])
    assert n_indexed // 2 <= len(places) <= n_indexed
    assert list(places.of_order(2)) == scanned(line[-len(places) :], 2, 3)


def test_tokens_with_equal_hashes_are_distinguished() -> None:
    assert hash((-1,)) == hash((-2,))
    places = NgramIndex((1,), reach=4)
    places.append([-1, 7, -2])
    assert list(places.of_order(1)) == []
