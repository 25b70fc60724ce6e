"""The loop on real models, with the reference kernels: one row per ubatch."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.backends.llama_cpp.backend import LlamaCppBackend, Role
from engine.backends.llama_cpp.log import NativeLog
from engine.configuration import (
    Configuration,
    ControllerName,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
)
from engine.events import Event, Finished
from engine.generation.session import Session
from engine.load import load_session
from engine.model.chat_template import ChatTemplate
from engine.model.gguf import read_gguf
from engine.requests import Cancellation, GenerationRequest, Message
from tests.support.filled_models import filled_model

pytestmark = pytest.mark.model

OFF = SpeculationSettings(predictor=PredictorName.OFF)
LOOKUP = SpeculationSettings(controller=ControllerName.FIXED, n_draft=5, lookup_pattern_min=1)
DRAFT = replace(LOOKUP, predictor=PredictorName.DRAFT, draft_min_confidence=0.0)
TEXT = "Rewrite with capital names: anna met tom, tom met anna, anna and tom met priya."


def open_backend(
    path: Path, log: NativeLog, role: Role = "target", *, n_ctx: int = 512
) -> LlamaCppBackend:
    settings = Configuration(
        path, n_ctx, n_batch=128, n_ubatch=1, flash_attention="on", n_threads=1
    )
    return LlamaCppBackend(settings, log, role)


@pytest.fixture(scope="module")
def log() -> NativeLog:
    return NativeLog()


@pytest.fixture(scope="module")
def session(starter_path: Path, log: NativeLog) -> Iterator[Session]:
    """The starter as its own draft: every draft token is the target's own."""
    target = open_backend(starter_path, log)
    draft = open_backend(starter_path, log, "draft")
    template = ChatTemplate(read_gguf(starter_path).chat_template)
    session = Session(target, template, OFF, draft_backend=draft)
    yield session
    session.close()


def run(session: Session, settings: SpeculationSettings, request: GenerationRequest) -> list[Event]:
    session.set_speculation(settings)
    return list(session.generate(request, Cancellation()))


def finished(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.7, marks=pytest.mark.slow)])
def test_the_text_is_that_of_plain_decoding(session: Session, temperature: float) -> None:
    sampling = SamplingSettings(temperature=temperature, top_k=40, repetition_penalty=1.1)
    request = GenerationRequest(
        messages=(Message("user", TEXT),), sampling=sampling, max_tokens=24, seed=11
    )
    plain = finished(run(session, OFF, request))
    assert plain.text.strip()
    for settings in (LOOKUP, DRAFT):
        for n_draft in (1, 8):
            reply = finished(run(session, replace(settings, n_draft=n_draft), request))
            assert reply.token_ids == plain.token_ids
            if settings is DRAFT:
                assert reply.stats.n_accepted == reply.stats.n_verified > 0


@pytest.mark.slow
def test_a_window_that_slides_during_the_reply_changes_nothing(
    gemma_path: Path, log: NativeLog
) -> None:
    """Gemma 3 keeps 512 tokens in most layers; prompt and reply go beyond them."""
    target = open_backend(gemma_path, log, n_ctx=1024)
    session = Session(target, ChatTemplate(read_gguf(gemma_path).chat_template), OFF)
    words = " ".join(f"item {n} costs {n * 7 % 50} coins," for n in range(70))
    request = GenerationRequest(raw_prompt=f"List: {words} item 1 costs", max_tokens=40, seed=1)
    plain = finished(run(session, OFF, request))
    assert plain.stats.n_prompt > 600
    reply = finished(run(session, LOOKUP, request))
    assert reply.token_ids == plain.token_ids
    assert reply.stats.n_verified > 0
    session.close()


def test_a_model_without_a_chat_template_is_noted(starter_path: Path, tmp_path: Path) -> None:
    bare = filled_model(tmp_path / "bare.gguf", "llama")
    for path, is_noted in ((bare, True), (starter_path, False)):
        loaded = load_session(Configuration(path, n_ctx=256, n_threads=1))
        loaded.session.close()
        assert any("no chat template" in note for note in loaded.loaded.notes) is is_noted


def test_a_context_that_llama_cpp_rounds_up_is_noted(starter_path: Path) -> None:
    for n_ctx, is_noted in ((64, True), (256, False)):
        loaded = load_session(Configuration(starter_path, n_ctx=n_ctx, n_threads=1))
        loaded.session.close()
        assert any(f"{n_ctx} were requested" in note for note in loaded.loaded.notes) is is_noted
