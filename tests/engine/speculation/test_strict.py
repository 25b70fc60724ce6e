"""How many rows come out of a batch as they would alone."""

import pytest

from engine.speculation.verify import CELLS, Exactness, exact_rows
from engine.testing import FakeBackend, FakeSequence, FakeVocabulary
from tests.engine.generation.test_session_verification import (
    RoughBackend,
    RoughBehind,
    RoughFromFour,
    SlidingBackend,
)

LETTERS = FakeVocabulary(26, ord("a"))
TOKENS = tuple(range(17))


@pytest.mark.parametrize(
    ("backend", "expected"),
    [(FakeBackend(LETTERS), 17), (RoughFromFour(LETTERS), 3), (RoughBackend(LETTERS), 1)],
)
def test_rows_are_exact_up_to_the_first_batch_that_rounds_otherwise(
    backend: FakeBackend, expected: int
) -> None:
    sequence = backend.open()
    sequence.prefill([5, 6, 7])
    assert exact_rows(sequence, TOKENS, 17) == expected
    assert list(sequence.tokens) == [5, 6, 7]


@pytest.mark.parametrize(("n_max", "n_tokens", "expected"), [(4, 17, 4), (17, 6, 5), (1, 17, 1)])
def test_no_more_rows_are_tried_than_there_are(n_max: int, n_tokens: int, expected: int) -> None:
    sequence = FakeBackend(LETTERS).open()
    assert exact_rows(sequence, TOKENS[:n_tokens], n_max) == expected


def held(backend: FakeBackend, n_tokens: int) -> FakeSequence:
    sequence = backend.open()
    for start in range(0, n_tokens, backend.n_batch):
        sequence.prefill([7] * min(backend.n_batch, n_tokens - start))
    return sequence


def test_rows_that_a_window_moves_on_with_are_not_measured_and_leave_nothing_held() -> None:
    sequence = SlidingBackend(LETTERS).open()
    sequence.prefill([5, 6, 7])
    assert exact_rows(sequence, TOKENS, 17) == 3
    assert list(sequence.tokens) == []


def test_rows_are_measured_with_tokens_of_text_where_a_chat_has_images() -> None:
    sequence, exactness = held(FakeBackend(LETTERS), 3), Exactness()
    asked: list[int] = []
    decode = sequence._decode
    sequence._decode = lambda tokens: (asked.extend(tokens), decode(tokens))[1]  # type: ignore[method-assign,func-returns-value]
    exactness.measure(sequence, (4, -9, -8, 5), 17)
    assert exactness.most_drafted(3) == 16
    assert set(asked) == {4, 5}


def test_exact_rows_are_measured_where_the_line_has_grown() -> None:
    backend, exactness = RoughBehind(LETTERS, n_ctx=2048), Exactness()
    for n_held, expected in ((3, 16), (CELLS, 16), (2 * CELLS, None), (1000, None)):
        sequence = held(backend, n_held)
        exactness.measure(sequence, TOKENS, 17)
        assert len(sequence.tokens) == n_held
        assert exactness.most_drafted(n_held) == expected
        assert exactness.most_drafted(3) == 16


def test_no_draft_reaches_into_the_next_block_of_cells() -> None:
    exactness = Exactness()
    for n_held in (CELLS - 16, CELLS - 1):
        exactness.measure(held(FakeBackend(LETTERS), n_held), TOKENS, 17)
        assert exactness.most_drafted(n_held) == 0, "nothing is known of this depth"
    exactness.measure(held(FakeBackend(LETTERS), CELLS - 17), TOKENS, 17)
    assert [exactness.most_drafted(CELLS - n) for n in (30, 17, 5, 1)] == [16, 16, 4, 0]


def test_what_is_known_is_not_measured_again() -> None:
    backend, exactness = FakeBackend(LETTERS), Exactness()
    exactness.measure(held(backend, 5), TOKENS, 17)
    sequence = held(backend, 40)
    before = backend.n_decodes
    exactness.measure(sequence, TOKENS, 17)
    assert backend.n_decodes == before
