import pytest

from engine.speculation.gain import best_length


def products(share: float, n: int = 16) -> list[float]:
    return [share ** (k + 1) for k in range(n)]


@pytest.mark.parametrize(("share", "expected"), [(0.59, 0), (0.61, 1), (0.95, 9)])
def test_a_token_is_drafted_while_it_is_right_more_often_than_it_costs(
    share: float, expected: int
) -> None:
    steps = [0.6 * (k + 1) for k in range(16)]
    assert best_length(products(share), steps, rate=1.0, credit=99.0) == expected


def test_a_kink_is_jumped_where_the_other_side_is_worth_it() -> None:
    steps = [1.7 + 0.06 * k for k in range(16)]
    assert best_length(products(0.5), steps, rate=1.0, credit=99.0) == 0
    assert best_length(products(0.95), steps, rate=1.0, credit=99.0) == 16


def test_time_is_worth_more_the_faster_it_goes() -> None:
    steps = [0.3 * (k + 1) for k in range(16)]
    slow = best_length(products(0.9), steps, rate=1.0, credit=99.0)
    fast = best_length(products(0.9), steps, rate=2.0, credit=99.0)
    assert 0 < fast < slow


def test_no_more_is_risked_than_there_is_credit() -> None:
    steps = [0.5 * (k + 1) for k in range(16)]
    assert best_length(products(0.99), steps, rate=1.0, credit=2.6) == 3
    assert best_length(products(0.99), steps, rate=1.0, credit=0.4) == 0
    assert best_length(products(0.99), steps, rate=1.0, credit=0.6) == 1


def test_without_credit_a_well_known_source_drafts_where_it_pays_clearly() -> None:
    shares, added = (0.98, 0.96, 0.94, 0.92), (0.95, 1.9, 2.5, 3.0)
    assert best_length(shares, added, rate=1.0, credit=0.0) == 0
    assert best_length(shares, added, rate=1.0, credit=0.0, is_known=True) == 4


def test_without_credit_no_source_drafts_where_it_hardly_pays() -> None:
    shares, added = (0.9, 0.81), (0.85, 1.65)
    assert best_length(shares, added, rate=1.0, credit=9.0) > 0
    assert best_length(shares, added, rate=1.0, credit=0.0, is_known=True) == 0
