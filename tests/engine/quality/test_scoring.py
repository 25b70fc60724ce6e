from dataclasses import replace

import numpy as np
import pytest

from tests.engine.quality.fake_opener import Q4, Q8, contexts, documents, scored

DOCUMENT = documents(1)[0]


def test_chunks_change_no_figure_of_a_model_that_they_do_not_change() -> None:
    small, _ = scored(DOCUMENT, contexts(Q8, n_chunk=5), n_chunk=5)
    large, _ = scored(DOCUMENT, contexts(Q8, n_chunk=60), n_chunk=60)
    assert all((one == other).all() for one, other in zip(small, large, strict=True))


def test_rows_before_the_first_are_read_and_not_scored() -> None:
    whole, _ = scored(DOCUMENT, contexts(Q4))
    late, reached = scored(replace(DOCUMENT, first=21), contexts(Q4))
    assert sum(reached) == 60
    assert all((some == all_[21:]).all() for some, all_ in zip(late, whole, strict=True))


def test_each_document_begins_with_an_empty_cache() -> None:
    listed = contexts(Q4)
    first, _ = scored(DOCUMENT, listed)
    again, _ = scored(DOCUMENT, listed)
    assert all((one == other).all() for one, other in zip(first, again, strict=True))


def test_the_reference_row_is_the_likelihood_of_the_text() -> None:
    listed = contexts()
    (reference, *_), _ = scored(DOCUMENT, listed)
    line = contexts()[0].sequence
    for index, token in enumerate(DOCUMENT.tokens[:-1]):
        row = line.decode(token).logits[0].astype(np.float64)
        expected = np.log(np.exp(row).sum()) - row[DOCUMENT.tokens[index + 1]]
        assert reference["nll"][index] == pytest.approx(expected, rel=1e-5)
