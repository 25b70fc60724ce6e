"""A small part of `benchmarks/fuzz_headers.py`, the same cases every time."""

import time
from collections import Counter

from tests.fuzzed_headers import damaged, outcome, small_seeds


def test_a_damaged_header_is_refused_or_estimated_and_nothing_else() -> None:
    seeds = small_seeds()
    counts: Counter[str] = Counter()
    slowest = 0.0
    for case in damaged(seeds, 2000, random_seed=1):
        started = time.perf_counter()
        counts[outcome(case)] += 1
        slowest = max(slowest, time.perf_counter() - started)
    assert slowest < 1.0
    assert counts["refused"] > 1000
    assert counts["estimated"] > 200, "most of what can be read can be estimated"


def test_undamaged_headers_are_all_estimated() -> None:
    from tests.fuzzed_headers import Case

    outcomes = {outcome(Case(s.name, "none", s.data, s.nbytes)) for s in small_seeds()}
    assert outcomes == {"estimated"}
