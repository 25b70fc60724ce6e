from dataclasses import replace

import numpy as np
import pytest

from engine.quality.scoring import ContestantError
from engine.quality.texts import Document
from tests.engine.quality.fake_opener import BROKEN, Q4, Q8, contestants, documents, scored

DOCUMENT = documents(1)[0]


def test_every_token_but_the_last_has_a_row_whatever_the_chunks() -> None:
    for n_chunk in (1, 7, 8, 60):
        rows, reached = scored(DOCUMENT, contestants(Q8, n_chunk=n_chunk), n_chunk=n_chunk)
        assert [len(each) for each in rows] == [59, 59, 59]
        assert sum(reached) in (59, 60)


def test_chunks_change_no_figure_of_a_model_that_they_do_not_change() -> None:
    small, _ = scored(DOCUMENT, contestants(Q8, n_chunk=5), n_chunk=5)
    large, _ = scored(DOCUMENT, contestants(Q8, n_chunk=60), n_chunk=60)
    assert all((one == other).all() for one, other in zip(small, large, strict=True))


def test_the_control_shows_nothing_where_batches_change_nothing() -> None:
    (_, control, *_), _ = scored(DOCUMENT, contestants())
    assert not control["kl"].any()


def test_a_worse_kind_is_further_off() -> None:
    (_, _, better, worse), _ = scored(DOCUMENT, contestants(Q8, Q4))
    assert 0 < better["kl"].mean() < worse["kl"].mean()
    assert better["same_top"].mean() > worse["same_top"].mean()


def test_rows_before_the_first_are_read_and_not_scored() -> None:
    whole, _ = scored(DOCUMENT, contestants(Q4))
    late, reached = scored(replace(DOCUMENT, first=21), contestants(Q4))
    assert sum(reached) == 60
    assert all((some == all_[21:]).all() for some, all_ in zip(late, whole, strict=True))


def test_each_document_begins_with_an_empty_cache() -> None:
    listed = contestants(Q4)
    first, _ = scored(DOCUMENT, listed)
    again, _ = scored(DOCUMENT, listed)
    assert all((one == other).all() for one, other in zip(first, again, strict=True))


def test_the_reference_row_is_the_likelihood_of_the_text() -> None:
    listed = contestants()
    (reference, *_), _ = scored(DOCUMENT, listed)
    line = contestants()[0].line
    for index, token in enumerate(DOCUMENT.tokens[:-1]):
        row = line.decode(token).logits[0].astype(np.float64)
        expected = np.log(np.exp(row).sum()) - row[DOCUMENT.tokens[index + 1]]
        assert reference["nll"][index] == pytest.approx(expected, rel=1e-5)


def test_a_kind_without_numbers_is_named() -> None:
    with pytest.raises(ContestantError, match="iq4_nl: its logits are no numbers") as caught:
        scored(DOCUMENT, contestants(Q8, BROKEN))
    assert caught.value.kind == BROKEN


def test_two_tokens_are_one_row() -> None:
    rows, _ = scored(Document("d", "chat", (1, 2)), contestants())
    assert [len(each) for each in rows] == [1, 1]
