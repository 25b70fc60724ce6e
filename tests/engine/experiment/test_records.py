"""What a benchmark writes down and reads again, and the facts of the machine."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.experiment.arm import ExperimentError
from engine.experiment.records import (
    PromptRecord,
    check_same_subject,
    read_results,
    write_results,
)
from engine.parsing import MAX_JSON
from tests.engine.experiment.made_results import record, results

AUTO = "combined:auto"


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    made = results(
        record({AUTO: [1.5, 1.25]}, prompt='Ünïcode "quotes" \u2028 </script>'),
        PromptRecord("chat", "two", 0.7, failure="refused", notes=("a note",)),
        arms=[AUTO],
    )
    path = tmp_path / "new" / "all.json"
    write_results(path, made)
    assert read_results(path) == made


def test_a_file_longer_than_other_json_is_read_again(tmp_path: Path) -> None:
    made = results(replace(record({AUTO: 1.5}), text="x" * MAX_JSON), arms=[AUTO])
    write_results(tmp_path / "all.json", made)
    assert read_results(tmp_path / "all.json") == made


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"schema": 99}', "[" * 100_000])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "all.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ExperimentError):
        read_results(path)


def test_a_damaged_file_is_refused_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    write_results(path, results(record({AUTO: 1.0}), arms=[AUTO]))
    data = json.loads(path.read_text(encoding="utf-8"))
    data["prompts"][0]["rows"][0][1]["stats"]["decode_s"] = "fast"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ExperimentError, match=r"prompts\.0\.rows\.0\.1\.stats\.decode_s"):
        read_results(path)


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(ExperimentError, match="cannot be written"):
        write_results(tmp_path / "file" / "all.json", results(arms=[AUTO]))


def test_only_results_of_the_same_measurement_are_continued() -> None:
    made = results(arms=[AUTO])
    check_same_subject(made, made)
    for changes, difference in (
        ({"subject": {**made.subject, "n_tokens": 128}}, "n_tokens was 64 and is 128"),
        ({"machine": {"system": "Haiku"}}, "system was 'Linux' and is 'Haiku'"),
        ({"arms": ("lookup:auto",)}, "arms was 'combined:auto' and is 'lookup:auto'"),
    ):
        with pytest.raises(ExperimentError, match=difference):
            check_same_subject(made, replace(made, **changes))
