"""A measurement is prepared, or refused with the reason; its notes name what limits it."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.quality.laboratory import Laboratory, LaboratoryPlan, Note
from engine.quality.records import QualityError
from engine.quality.request import LaboratoryRequest, laboratory_of, subject_settings
from engine.quality.texts import Text
from tests.engine.quality.fake_opener import F16, Q8, FakeOpener, documents, empty_report
from tests.support.gguf_files import header, llama_values, write

WORDS = Text("t", "chat", " ".join(f"word{n}" for n in range(40)))
LONG = Text("long", "document", " ".join(f"word{n}" for n in range(2000)))


class Opener(FakeOpener):
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def prepared(tmp_path: Path, opener: Opener, **changes: object) -> Laboratory:
    model = write(tmp_path / "m.gguf", header(llama_values(**{"llama.context_length": 4096})))
    plan = LaboratoryPlan((Q8,), takes_times=False)
    request = LaboratoryRequest(Configuration(model, 512), plan, (WORDS,), n_ctx=512)
    return laboratory_of(replace(request, **changes), lambda _: opener)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_ctx": 32}, "32 tokens is too small"),
        ({"texts": (Text("s", "chat", "short"),)}, "no text has 32 tokens"),
        ({"earlier": empty_report(documents())}, "another measurement"),
    ],
)
def test_what_cannot_be_measured_is_refused_and_the_model_is_freed(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    opener = Opener()
    with pytest.raises(QualityError, match=words):
        prepared(tmp_path, opener, **changes)
    assert opener.is_closed or "n_ctx" in changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "too few for a verdict"),
        ({"texts": (WORDS, WORDS, WORDS)}, "2 texts are duplicates"),
        ({"haystack": (WORDS,), "n_ctx": 64}, "no retrieval question fits into 64 tokens"),
        ({"texts": (LONG,), "n_most": 600}, "--tokens sets this limit"),
        pytest.param(
            {"texts": (LONG,), "n_ctx": 5000}, "up to 5,000 tokens, more than the model's training",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_each_limit_of_a_measurement_is_a_note(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    laboratory = prepared(tmp_path, Opener(), **changes)
    notes = [event.text for event in laboratory.run() if isinstance(event, Note)]
    assert [note for note in notes if words in note]
    assert not [note for note in notes if words not in note and "too few" not in note]


def test_a_type_that_llama_cpp_refuses_is_left_out_with_the_reason(tmp_path: Path) -> None:
    model = write(tmp_path / "m.gguf", header(llama_values()))
    off = Configuration(model, 512, flash_attention="off")
    laboratory = prepared(tmp_path, Opener(), configuration=off)
    [refused] = [e.text for e in laboratory.run() if isinstance(e, Note) and "q8_0" in e.text]
    assert "flash attention" in refused
    assert laboratory.report.subject.settings == subject_settings(off)
    of_torch = replace(off, backend="torch")
    assert subject_settings(of_torch)["backend"] == "torch"
    assert prepared(tmp_path, Opener(), configuration=of_torch).report.subject.reference == F16
