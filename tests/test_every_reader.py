"""A small part of `benchmarks/hostile_inputs.py`, the same inputs every time."""

import pytest

from tests.support.hostile_readers import READERS
from tests.support.hostile_texts import BOMBS
from tests.support.measured_reader import LIMIT_BYTES, LIMIT_S, Reader, measured

MOST = 60_000
"""Bytes of an input here: larger ones take a second each."""
BY_NAME = {reader.name: reader for reader in READERS}


@pytest.mark.parametrize("name", BY_NAME)
def test_no_content_of_a_file_hurts_its_reader(name: str) -> None:
    reader = BY_NAME[name]
    check(reader, n_inputs=round((len(BOMBS) + 150) * min(reader.share, 1)), most=MOST)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_no_large_content_of_a_file_hurts_its_reader(name: str) -> None:
    check(BY_NAME[name], n_inputs=len(BOMBS), most=10 * MOST)


def check(reader: Reader, n_inputs: int, most: int) -> None:
    for given in reader.inputs(n_inputs, 1):
        if isinstance(given, bytes) and len(given) > most:
            continue
        outcome = measured(reader, given)
        assert outcome.failure is None, f"{outcome.failure} of {given!r:.1000}"
        assert outcome.elapsed_s < LIMIT_S, f"{given!r:.1000}"
        assert outcome.grown_bytes < LIMIT_BYTES, f"{given!r:.1000}"
        assert not outcome.n_controls, f"{given!r:.1000}"
