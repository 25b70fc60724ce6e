from pathlib import Path

import numpy as np
import pytest

from engine.quality.metrics import ROW
from engine.quality.records import QualityError
from engine.quality.row_store import RowKey, RowStore
from tests.engine.quality.fake_opener import F16, Q8

KEY, OTHER = RowKey("candidate", Q8, 3), RowKey("control", F16, 0)


def written(path: Path) -> RowStore:
    store = RowStore(path, "subject")
    rows = np.zeros(5, dtype=ROW)
    rows["kl"] = np.arange(5)
    store.put(KEY, 0, rows)
    store.put(OTHER, 0, np.zeros(2, dtype=ROW))
    store.write()
    return store


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    before = written(tmp_path / "rows")
    after = RowStore(tmp_path / "rows", "subject")
    after.read()
    for key in (KEY, OTHER):
        one, other = before.get(key), after.get(key)
        assert one is not None
        assert other is not None
        assert (one == other).all()
    assert (tmp_path / "rows").stat().st_mode & 0o077 == 0


def test_chunks_are_joined_and_what_is_there_stays() -> None:
    store, rows = RowStore(None, "subject"), np.zeros(9, dtype=ROW)
    rows["kl"] = np.arange(9)
    for start, stop in ((0, 4), (4, 8), (0, 4), (4, 9)):
        store.put(KEY, start, rows[start:stop])
    assert store.n_rows(KEY) == 9
    assert store.n_rows(OTHER) == 0
    found = store.get(KEY)
    assert found is not None
    assert (found == rows).all()


def test_rows_behind_missing_ones_are_not_kept() -> None:
    store = RowStore(None, "subject")
    store.put(KEY, 4, np.zeros(4, dtype=ROW))
    assert store.get(KEY) is None


def test_rows_of_another_measurement_are_not_taken_up(tmp_path: Path) -> None:
    written(tmp_path / "rows")
    other = RowStore(tmp_path / "rows", "another subject")
    other.read()
    assert other.get(KEY) is None


@pytest.mark.parametrize("at", [0, 9, 20, 60, -1])
def test_a_changed_byte_is_noticed(tmp_path: Path, at: int) -> None:
    path = tmp_path / "rows"
    written(path)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(QualityError, match="delete it"):
        RowStore(path, "subject").read()


def test_a_file_that_is_cut_off_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    written(path)
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(QualityError, match="cut off"):
        RowStore(path, "subject").read()


def test_a_file_that_is_not_there_is_no_fault(tmp_path: Path) -> None:
    RowStore(tmp_path / "rows", "subject").read()
    RowStore(None, "subject").write()


def test_a_disk_that_takes_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(QualityError, match="cannot be written"):
        written(tmp_path / "file" / "rows")
