import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.configuration import Configuration, FlashAttention, KVTypeName, KVTypes
from engine.contexts import LlamaCppContexts
from engine.errors import ModelFileError, WorkerError
from engine.load import open_laboratory
from engine.process import laboratory
from engine.process.laboratory import LaboratoryProcess
from engine.quality.laboratory import LaboratoryFinished, LaboratoryPlan, LaboratoryProgress
from engine.quality.records import QualityError
from engine.quality.request import LaboratoryRequest, subject_settings
from engine.quality.scoring import BatchShape
from engine.quality.texts import Text
from tests.conftest import ROOT
from tests.engine.quality.fake_opener import Q8
from tests.support.filled_models import filled_model

TEXT = Text("t", "chat", "A short text about nothing in particular. " * 8)


def request(model: Path, **more: object) -> LaboratoryRequest:
    configuration = Configuration(model, 512, n_threads=1)
    plan = LaboratoryPlan((Q8,), takes_times=False)
    return LaboratoryRequest(configuration, plan, (TEXT,), **more)  # type: ignore[arg-type]


def test_an_error_comes_out_as_what_it_is(tmp_path: Path) -> None:
    process = LaboratoryProcess(request(tmp_path / "no.gguf"), tmp_path / "log")
    with process, pytest.raises(ModelFileError, match=r"no\.gguf"):
        next(process)


def test_a_process_that_dies_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dies = "import os, sys, time; os.read(int(sys.argv[1]), 1); os.abort()"
    monkeypatch.setattr(laboratory, "LABORATORY_COMMAND", (sys.executable, "-c", dies))
    with (
        LaboratoryProcess(request(tmp_path / "m.gguf"), tmp_path / "log") as process,
        pytest.raises(WorkerError, match="stopped"),
    ):
        next(process)
    assert list(process) == []
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled_model(tmp_path_factory.mktemp("models") / "m.gguf", "llama")


def test_a_context_has_the_size_of_its_shape_and_the_types_of_its_kind(model: Path) -> None:
    usual = Configuration(model, 512, n_threads=1, n_slots=3, kv_unified=True)
    contexts = LlamaCppContexts(replace(usual, flash_attention="on"))
    shape = BatchShape(1024, 256, 32)
    one, other = (
        contexts.open(kind, shape).backend
        for kind in (KVTypes("q8_0", "q4_0"), KVTypes("f16", "f16"))
    )
    assert (one.n_ctx, one.n_batch, one.n_rows, one.n_sequences) == (1024, 256, 32, 1)
    assert one.kv_bytes / other.kv_bytes == pytest.approx(13 / 32, rel=0.03)
    contexts.close()


@pytest.mark.parametrize(
    ("flash_attention", "reference"),
    [("on", "f16"), ("auto", "f16"), ("off", "f16"), ("on", "f32")],
)
def test_the_control_computes_nearly_the_same_by_the_other_attention(
    model: Path, flash_attention: FlashAttention, reference: KVTypeName
) -> None:
    contexts = LlamaCppContexts(
        Configuration(model, 512, n_threads=1, flash_attention=flash_attention)
    )
    shape = BatchShape(512, 32, 32)
    rows = [
        contexts.open(KVTypes(reference, reference), shape, role).sequence.verify(range(5, 37))
        for role in ("reference", "reference", "control")
    ]
    first, again, control = (each.logits for each in rows)
    assert np.array_equal(first, again)
    assert 0 < np.abs(first - control).max() < 0.05 * np.abs(first).max()
    contexts.close()


@pytest.mark.parametrize("n_ctx", [None, 300])
def test_the_settings_that_were_asked_stand_in_the_report(model: Path, n_ctx: int | None) -> None:
    asked = Configuration(model, 512, n_threads=6, n_slots=3, flash_attention="on", swa_full=True)
    laboratory = open_laboratory(
        LaboratoryRequest(asked, LaboratoryPlan((Q8,)), (TEXT,), n_ctx=n_ctx)
    )
    assert laboratory.report.subject.settings == subject_settings(asked)
    assert laboratory.report.subject.n_threads == 6
    laboratory.close()


def test_a_real_model_is_measured_with_the_same_events(starter_path: Path, tmp_path: Path) -> None:
    with LaboratoryProcess(request(starter_path), tmp_path / "log") as process:
        *_, last = process
    assert isinstance(last, LaboratoryFinished)
    assert last.is_complete
    found = last.report.find(Q8)
    assert found is not None
    assert 0 < found.scores.kl_mean.value < 0.05
    assert last.report.reference is not None
    assert last.report.reference.scores.n_tokens == found.scores.n_tokens


def test_a_context_that_is_too_small_is_refused(starter_path: Path, tmp_path: Path) -> None:
    process = LaboratoryProcess(request(starter_path, n_ctx=20), tmp_path / "log")
    with process, pytest.raises(QualityError, match="64"):
        list(process)


def test_values_without_flash_attention_are_left_out_with_the_reason(
    starter_path: Path, tmp_path: Path
) -> None:
    configuration = Configuration(starter_path, 512, n_threads=1, flash_attention="off")
    plan = LaboratoryPlan((Q8, KVTypes("q8_0", "f16")), takes_times=False)
    asked = LaboratoryRequest(configuration, plan, (TEXT,))
    with LaboratoryProcess(asked, tmp_path / "log") as process:
        events = list(process)
    last = events[-1]
    assert isinstance(last, LaboratoryFinished)
    assert any("flash attention" in getattr(event, "text", "") for event in events)
    assert [row.kind for row in last.report.candidates] == [KVTypes("q8_0", "f16")]


@pytest.mark.slow
@pytest.mark.model
def test_a_real_model_goes_on_after_a_stop_to_the_same_figures(
    starter_path: Path, tmp_path: Path
) -> None:
    long = Text("t", "document", (ROOT / "docs" / "cache.md").read_text()[:2000])
    asked = replace(request(starter_path), texts=(long,))

    def measured(asked: LaboratoryRequest, stop_at: float) -> LaboratoryFinished:
        with LaboratoryProcess(asked, tmp_path / "log") as process:
            for event in process:
                if isinstance(event, LaboratoryProgress) and event.n_done > stop_at * event.n_total:
                    process.stop()
        assert isinstance(event, LaboratoryFinished)
        return event

    whole = measured(asked, stop_at=1.0)
    half = measured(asked, stop_at=0.3)
    assert not half.is_complete
    assert 0 < half.report.candidates[0].scores.n_tokens < whole.report.n_tokens
    rest = measured(replace(asked, earlier=half.report), stop_at=1.0)
    assert rest.is_complete
    assert rest.report.measurements == whole.report.measurements
