"""How many rows come out of a batch as they would alone."""

import pytest

from engine.speculation.exactness import exact_rows
from tests.engine.test_session_verification import RoughBackend, RoughFromFour
from tests.fakes import FakeBackend, FakeVocabulary

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
    assert list(sequence.tokens) == []


@pytest.mark.parametrize(("n_max", "n_tokens", "expected"), [(4, 17, 4), (17, 6, 5), (1, 17, 1)])
def test_no_more_rows_are_tried_than_there_are(n_max: int, n_tokens: int, expected: int) -> None:
    sequence = FakeBackend(LETTERS).open()
    assert exact_rows(sequence, TOKENS[:n_tokens], n_max) == expected
