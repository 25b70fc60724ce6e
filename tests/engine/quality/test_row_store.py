from pathlib import Path

import numpy as np
import pytest

from engine.quality.metrics import ROW, Rows
from engine.quality.records import QualityError
from engine.quality.row_store import RowKey, read_rows, write_rows
from tests.engine.quality.fake_opener import F16, Q8

KEY, OTHER = RowKey("candidate", Q8, 3), RowKey("control", F16, 0)


def written(path: Path) -> dict[RowKey, Rows]:
    rows = np.zeros(5, dtype=ROW)
    rows["kl"] = np.arange(5)
    kept = {KEY: rows, OTHER: np.zeros(2, dtype=ROW)}
    write_rows(path, "subject", kept)
    return kept


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    before = written(tmp_path / "rows")
    after = read_rows(tmp_path / "rows", "subject")
    assert after.keys() == before.keys()
    assert all((after[key] == before[key]).all() for key in before)
    assert (tmp_path / "rows").stat().st_mode & 0o077 == 0


def test_rows_of_another_measurement_are_not_taken_up(tmp_path: Path) -> None:
    written(tmp_path / "rows")
    assert read_rows(tmp_path / "rows", "another subject") == {}


def test_rows_that_are_changed_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    written(path)
    data = bytearray(path.read_bytes())
    data[data.index(np.arange(5, dtype="<f4")[3:4].tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(QualityError, match="delete it"):
        read_rows(path, "subject")


@pytest.mark.parametrize("found", [np.zeros(3), np.array(["a"], dtype=object)])
def test_an_array_of_something_else_is_refused(tmp_path: Path, found: np.ndarray) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, subject=np.array("subject"), **{str(KEY): found})
    with pytest.raises(QualityError, match="delete it"):
        read_rows(path, "subject")


@pytest.mark.parametrize("n_bytes", [0, 30, -9])
def test_a_file_that_is_cut_off_is_noticed(tmp_path: Path, n_bytes: int) -> None:
    path = tmp_path / "rows"
    written(path)
    path.write_bytes(path.read_bytes()[:n_bytes])
    with pytest.raises(QualityError, match="delete it"):
        read_rows(path, "subject")


def test_a_file_that_is_not_there_is_no_fault(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "rows", "subject") == {}


def test_a_disk_that_takes_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(QualityError, match="cannot be written"):
        written(tmp_path / "file" / "rows")
