"""What was measured outlives the process, and a damaged file is as good as none."""

import json
from pathlib import Path

import pytest

from engine.tuning.outcome import RecordError, TuningRecord, read_record, write_record
from engine.tuning.trials import WorkloadSizes

RECORD = TuningRecord(
    sizes=WorkloadSizes(96, 15, 1184),
    blocks={"noise": {"near": [(0.1, 0.2, 0.3, 0.4)], "prompt": []}},
    failures={"flash attention: off": "the engine stopped"},
    spent_s=12.5,
)


def test_a_record_comes_back_as_it_was_and_is_its_owners_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "record.json"
    write_record(path, RECORD)
    assert read_record(path) == RECORD
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "change",
    [
        {"version": 99},
        {"spent_s": "soon"},
        {"spent_s": 1e300},
        {"sizes": {"n_prompt": -1, "n_written": 1, "n_deep": 1}},
        {"sizes": {"n_prompt": 1}},
        {"blocks": []},
        {"blocks": {"noise": {"near": [[1, 2, 3]]}}},
        {"blocks": {"noise": {"near": [[0, 1, 1, 1]]}}},
        {"blocks": {"noise": {"near": [["nan", 1, 1, 1]]}}},
        {"blocks": {"noise": 3}},
    ],
)
def test_a_damaged_record_is_none(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "record.json"
    write_record(path, RECORD)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert read_record(path) == TuningRecord()
    path.write_text("{")
    assert read_record(path) == TuningRecord()
    assert read_record(tmp_path / "missing.json") == TuningRecord()


def test_no_room_is_told_with_the_file(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RecordError, match="cannot be written"):
        write_record(blocked / "record.json", RECORD)
