import numpy as np
import pytest
from numpy.typing import NDArray

from engine.quality.metrics import compared_rows, reference_rows
from engine.quality.records import QualityError

N, V = 40, 50_000


def logits(scale: float = 3.0, seed: int = 1, n: int = N, v: int = V) -> NDArray[np.float32]:
    return (scale * np.random.default_rng(seed).normal(size=(n, v))).astype(np.float32)


def log_softmax(x: NDArray[np.float32]) -> NDArray[np.float64]:
    y = x.astype(np.float64)
    y -= y.max(axis=1, keepdims=True)
    return y - np.log(np.exp(y).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("noise", [1e-4, 0.01, 0.3, 5.0])
def test_figures_are_those_of_the_plain_formulas(noise: float) -> None:
    first = logits()
    second = first + logits(noise, seed=2)
    tokens = list(range(7, 7 + N))
    log_p, log_q = log_softmax(first), log_softmax(second)
    rows = compared_rows(reference_rows(first, tokens), second)
    picked = np.arange(N), tokens
    assert rows["kl"] == pytest.approx(
        (np.exp(log_p) * (log_p - log_q)).sum(axis=1), rel=2e-3, abs=5e-7
    )
    assert rows["delta"] == pytest.approx(log_p[picked] - log_q[picked], rel=1e-3, abs=2e-6)
    assert rows["nll"] == pytest.approx(-log_q[picked], rel=1e-5)
    assert (rows["same_top"] == (log_p.argmax(axis=1) == log_q.argmax(axis=1))).all()
    assert (rows["is_right"] == (log_q.argmax(axis=1) == tokens)).all()


def test_equal_logits_differ_by_nothing_at_all() -> None:
    first = logits()
    rows = compared_rows(reference_rows(first, range(N)), first.copy())
    assert not rows["kl"].any()
    assert not rows["delta"].any()
    assert rows["same_top"].all()


def test_logits_beyond_float32_exponentials_are_compared_too() -> None:
    first = np.zeros((1, 4), dtype=np.float32)
    first[0, 0] = 500.0
    second = np.roll(first, 1, axis=1)
    rows = compared_rows(reference_rows(first, [0]), second)
    assert rows["kl"][0] == pytest.approx(500.0)
    assert rows["delta"][0] == pytest.approx(500.0)


def test_a_part_of_the_rows_is_compared_with_its_own_rows() -> None:
    first, second = logits(), logits(seed=5)
    whole = compared_rows(reference_rows(first, range(N)), second)
    part = compared_rows(reference_rows(first, range(N)), second[10:], start=10)
    assert (part == whole[10:]).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_refused(wrong: float) -> None:
    first = logits()
    second = first.copy()
    second[3, 9] = wrong
    with pytest.raises(QualityError, match="NaN or infinity"):
        compared_rows(reference_rows(first, range(N)), second)
    with pytest.raises(QualityError, match="reference"):
        reference_rows(second, range(N))
