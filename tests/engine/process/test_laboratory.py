import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engine import contexts as contexts_module
from engine import load
from engine.configuration import Configuration, FlashAttention, KVTypes
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
from engine.testing import FakeBackend, FakeVocabulary
from tests.conftest import ROOT
from tests.engine.quality.fake_opener import Q8, FakeOpener
from tests.support.filled_models import SHAPES
from tests.support.made_models import made_model

TEXT = Text("t", "chat", "A short text about nothing in particular. " * 8)


def request(model: Path, **more: object) -> LaboratoryRequest:
    configuration = Configuration(model, 512, n_threads=1)
    plan = LaboratoryPlan((Q8,), takes_times=False)
    return LaboratoryRequest(configuration, plan, (TEXT,), **more)  # type: ignore[arg-type]


def test_an_error_comes_out_as_what_it_is(tmp_path: Path) -> None:
    process = LaboratoryProcess(request(tmp_path / "no.gguf"), tmp_path / "log")
    with process, pytest.raises(ModelFileError, match=r"no\.gguf"):
        next(process)


def test_a_process_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dies = "import os, sys, time; os.read(int(sys.argv[1]), 1); os.abort()"
    monkeypatch.setattr(laboratory, "LABORATORY_COMMAND", (sys.executable, "-c", dies))
    with (
        LaboratoryProcess(request(tmp_path / "m.gguf"), tmp_path / "log") as process,
        pytest.raises(WorkerError, match="measurement stopped"),
    ):
        next(process)
    assert list(process) == []
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


class FakeWeights:
    """Weights without a file."""

    def __init__(self, *_: object) -> None:
        self.n_users = 0

    def take(self) -> object:
        self.n_users += 1
        return self

    def release(self) -> None:
        self.n_users -= 1


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Configuration, int | None]]:
    """The configurations and rows that contexts of llama.cpp are opened with from now on."""
    found: list[tuple[Configuration, int | None]] = []

    def backend(
        configuration: Configuration, _: object, *, model: object, n_rows: int | None
    ) -> FakeBackend:
        assert isinstance(model, FakeWeights)
        found.append((configuration, n_rows))
        one = FakeBackend(FakeVocabulary())
        one.compute_bytes = 1000
        return one

    monkeypatch.setattr(contexts_module, "LoadedModel", FakeWeights)
    monkeypatch.setattr(contexts_module, "LlamaCppVocabulary", lambda _: FakeVocabulary())
    monkeypatch.setattr(contexts_module, "LlamaCppBackend", backend)
    return found


SET = Configuration(
    Path("m.gguf"), 512, n_threads=6, n_threads_batch=5, n_slots=3, kv_unified=True,
    flash_attention="on", offload_kqv=False, swa_full=True, use_extra_buffers=False,
)  # fmt: skip
"""Settings that are no defaults."""


def test_a_context_has_the_size_of_its_shape_and_all_other_settings_of_the_model(
    opened: list[tuple[Configuration, int | None]],
) -> None:
    contexts = LlamaCppContexts(SET)
    contexts.open(KVTypes("q8_0", "q4_0"), BatchShape(1024, 256, 32))
    expected = replace(
        SET, type_k="q8_0", type_v="q4_0", n_slots=1, kv_unified=False, n_ctx=1024, n_batch=256,
        n_ubatch=256,
    )  # fmt: skip
    assert opened == [(expected, 32)]


def test_f32_is_read_without_flash_attention(
    opened: list[tuple[Configuration, int | None]],
) -> None:
    contexts = LlamaCppContexts(replace(SET, n_gpu_layers=-1))
    shape = BatchShape(1024, 256, 32)
    for kind in (KVTypes("f32", "f32"), KVTypes("f32", "q8_0"), KVTypes("f16", "f16")):
        contexts.open(kind, shape)
    usual = SET.flash_attention
    assert [one.flash_attention for one, _ in opened] == ["off", usual, usual]


@pytest.mark.parametrize(
    ("flash_attention", "reference", "of_the_control"),
    [("on", "f16", "off"), ("auto", "f16", "off"), ("off", "f16", "on"), ("on", "f32", "on")],
)
@pytest.mark.parametrize("n_chunk", [16, 32, 64])
def test_the_control_has_the_other_attention_whatever_the_batch_is(
    opened: list[tuple[Configuration, int | None]],
    tmp_path: Path,
    flash_attention: FlashAttention,
    reference: str,
    of_the_control: str,
    n_chunk: int,
) -> None:
    path = made_model(tmp_path / "m.gguf", "llama", SHAPES["llama"]).file.path
    contexts = LlamaCppContexts(replace(SET, model_path=path, flash_attention=flash_attention))
    kind, shape = KVTypes(reference, reference), BatchShape(512, n_chunk, n_chunk)
    contexts.open(kind, shape)
    control = contexts.open(kind, replace(shape, is_control=True))
    [first, second] = [each.flash_attention for each, _ in opened]
    assert first == ("off" if reference == "f32" else flash_attention)
    assert second == of_the_control
    assert control.n_step == n_chunk // 4


@pytest.mark.parametrize("n_ctx", [None, 300])
def test_the_settings_that_were_asked_are_measured_with_and_stand_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_ctx: int | None
) -> None:
    path = made_model(tmp_path / "m.gguf", "llama", SHAPES["llama"]).file.path
    asked, loaded = replace(SET, model_path=path), []
    monkeypatch.setattr(
        load, "LlamaCppContexts", lambda given: loaded.append(given) or FakeOpener()
    )
    one = open_laboratory(LaboratoryRequest(asked, LaboratoryPlan((Q8,)), (TEXT,), n_ctx=n_ctx))
    assert loaded == [replace(asked, n_ctx=n_ctx or 4096)]
    assert one.report.subject.settings == subject_settings(asked)
    assert one.report.subject.n_threads == 6


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
    with process, pytest.raises(QualityError, match="64 are the fewest"):
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
    assert any("needs flash attention" in getattr(event, "text", "") for event in events)
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
