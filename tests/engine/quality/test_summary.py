import numpy as np
import pytest

from engine.quality.metrics import ROW, Rows
from engine.quality.records import Answers
from engine.quality.summary import answers_of, parts_by_position, scores_of
from engine.quality.texts import AnswerSpan, Document


def rows_of(kl: list[float], *, delta: float = 0.0, is_right: bool = True) -> Rows:
    rows = np.zeros(len(kl), dtype=ROW)
    rows["kl"] = kl
    rows["delta"] = delta
    rows["nll"] = 2.0 + delta
    rows["same_top"] = is_right
    rows["is_right"] = is_right
    return rows


def test_points_are_those_of_all_rows_together() -> None:
    values = np.random.default_rng(1).exponential(size=3000)
    scores = scores_of([rows_of(list(part)) for part in np.split(values, 6)])
    stored = values.astype(np.float32).astype(np.float64)
    assert scores.n_tokens == 3000
    assert scores.kl_mean.value == pytest.approx(stored.mean())
    assert scores.kl_median.value == pytest.approx(np.quantile(stored, 0.5))
    assert scores.kl_p99.value == pytest.approx(np.quantile(stored, 0.99))
    assert scores.kl_p999.value == pytest.approx(np.quantile(stored, 0.999))


def test_intervals_come_from_documents_and_not_from_rows() -> None:
    alike = scores_of([rows_of([0.1, 0.3] * 500) for _ in range(8)])
    apart = scores_of([rows_of([0.1 * index] * 1000) for index in range(8)])
    assert (alike.kl_mean.low, alike.kl_mean.high) == pytest.approx((0.2, 0.2))
    assert apart.kl_mean.low is not None
    assert apart.kl_mean.high is not None
    assert apart.kl_mean.low < 0.3 < 0.35 < 0.4 < apart.kl_mean.high


def test_an_interval_covers_the_truth_about_as_often_as_it_should() -> None:
    draw = np.random.default_rng(5)
    hits = 0
    for _ in range(100):
        levels = draw.normal(1.0, 0.2, size=12)
        figure = scores_of([rows_of([max(level, 0)] * 20) for level in levels], n_draws=200).kl_mean
        assert figure.low is not None
        assert figure.high is not None
        hits += figure.low <= 1.0 <= figure.high
    assert 80 <= hits <= 99


def test_one_document_or_no_draws_have_no_interval() -> None:
    assert scores_of([rows_of([1.0, 2.0])]).kl_mean.low is None
    assert scores_of([rows_of([1.0]), rows_of([2.0])], n_draws=0).kl_mean.low is None


def test_the_ratio_of_perplexities_is_that_of_the_loss() -> None:
    scores = scores_of([rows_of([0.0], delta=0.1), rows_of([0.0], delta=0.3)])
    assert scores.perplexity_ratio.value == pytest.approx(np.exp(0.2))
    assert scores.perplexity_ratio.low == pytest.approx(np.exp(scores.nll_delta.low or 0))


def test_positions_count_from_the_start_of_the_document() -> None:
    documents = [
        Document("long", "document", tuple(range(9001))),
        Document("late", "chat", tuple(range(3001)), first=2500),
    ]
    rows = [rows_of([1.0] * 2048 + [2.0] * 6144 + [3.0] * 808), rows_of([5.0] * 500)]
    parts = parts_by_position(documents, rows)
    found = {part.name: part.scores for part in parts}
    assert [(name, each.n_tokens) for name, each in found.items()] == [
        ("0-2k", 2048), ("2-8k", 6644), ("8-16k", 808),
    ]  # fmt: skip
    assert found["0-2k"].kl_mean.value == 1.0
    assert found["2-8k"].kl_mean.value == pytest.approx((2 * 6144 + 5 * 500) / 6644)
    assert found["8-16k"].kl_mean.value == 3.0


def test_an_answer_is_right_where_all_of_its_tokens_are() -> None:
    document = Document(
        "q", "needle", tuple(range(20)), first=9,
        answers=(
            AnswerSpan("10 %", 11, 13), AnswerSpan("50 %", 14, 16), AnswerSpan("10 %", 17, 18),
        ),
    )  # fmt: skip
    rows = rows_of([0.0] * 10)
    rows["is_right"][15 - 10] = False  # the row of token 14 predicts token 15
    rows["is_right"][13 - 10] = False  # of no answer, directly after one
    assert answers_of([document], [rows]) == (Answers("10 %", 2, 2), Answers("50 %", 0, 1))
    assert answers_of([document], [rows[: 13 - 10]]) == (Answers("10 %", 1, 1),), "not asked yet"
    assert answers_of([document], [rows[: 12 - 10]]) == ()
