"""The first prompt tells what batches cost."""

from collections.abc import Sequence

import pytest

from engine.backends.base import Forward
from engine.errors import DecodeAborted
from engine.speculation.calibration import N_MEASURED, SIZES, measure_batches
from engine.speculation.curve import MAX_ROWS, BatchCurve
from tests.fakes import FakeBackend, FakeSequence

TOKENS = [n % 7 for n in range(N_MEASURED)]
WARM_UP_S = 9.0


def cost_s(n_rows: int) -> float:
    return 0.01 * (1 + 0.5 * (n_rows - 1))


class Timed(FakeSequence):
    """Every batch takes `cost_s` on a clock of its own, the first one much longer."""

    def __init__(self, backend: FakeBackend) -> None:
        super().__init__(backend)
        self.now_s = 0.0
        self.sizes: list[int] = []

    def verify(self, tokens: Sequence[int]) -> Forward:
        forward = super().verify(tokens)
        self.now_s += cost_s(len(tokens)) if self.sizes else WARM_UP_S
        self.sizes.append(len(tokens))
        return forward


@pytest.fixture
def sequence(monkeypatch: pytest.MonkeyPatch) -> Timed:
    timed = Timed(FakeBackend())
    monkeypatch.setattr("engine.speculation.cost.time.perf_counter", lambda: timed.now_s)
    return timed


def test_every_token_is_decoded_once_and_in_order(sequence: Timed) -> None:
    measure_batches(sequence, TOKENS, BatchCurve())
    assert list(sequence.tokens) == TOKENS
    assert tuple(sequence.sizes) == SIZES


def test_batches_cost_what_they_took_and_the_warm_up_is_not_counted(sequence: Timed) -> None:
    curve = BatchCurve()
    measure_batches(sequence, TOKENS, curve)
    assert curve.plain_s == pytest.approx(cost_s(1))
    assert [n_rows for n_rows, _ in curve.measured()] == sorted(set(SIZES))
    assert [steps for _, steps in curve.measured()] == pytest.approx(
        [cost_s(n_rows) / cost_s(1) for n_rows in sorted(set(SIZES))]
    )


def test_a_draft_of_any_length_can_be_weighed_behind_it(sequence: Timed) -> None:
    curve = BatchCurve()
    measure_batches(sequence, TOKENS, curve)
    assert curve.measured()[-1][0] == MAX_ROWS
    assert curve.reach == MAX_ROWS


def test_only_the_batches_are_timed(sequence: Timed) -> None:
    class Slow(BatchCurve):
        def add(self, n_rows: int, elapsed_s: float) -> None:
            sequence.now_s += 1.0
            super().add(n_rows, elapsed_s)

    curve = Slow()
    measure_batches(sequence, TOKENS, curve)
    assert curve.plain_s == pytest.approx(cost_s(1))
    assert curve.steps(MAX_ROWS) == pytest.approx(cost_s(MAX_ROWS) / cost_s(1))


def test_what_was_measured_before_a_stop_stays(sequence: Timed) -> None:
    curve = BatchCurve()
    backend = FakeBackend()
    stopped = Timed(backend)
    backend.abort()
    with pytest.raises(DecodeAborted):
        measure_batches(stopped, TOKENS, curve)
    assert curve.measured() == ()
    measure_batches(sequence, TOKENS, curve)
    assert len(curve.measured()) == len(set(SIZES))
