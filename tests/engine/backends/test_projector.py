"""A projector beside a model: what it gives is what llama.cpp's own program gives."""

import ctypes
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from engine.backends.base import Step, rewind
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.configuration import (
    Configuration,
    ControllerName,
    DraftConfiguration,
    PredictorName,
    SpeculationSettings,
)
from engine.errors import ContextFullError, DecodeAborted, StateError
from engine.events import Finished, PromptReady
from engine.generation.prompt import text_tokens
from engine.generation.session import Session
from engine.images import Image, ImageError, read_image, starts_image
from engine.load import load_session
from engine.requests import Cancellation, GenerationRequest, Message
from tests.support.filled_models import filled_model
from tests.support.filled_projectors import WITH_WORDS, Kind, filled_projector, png

try:
    from llama_cpp import mtmd_cpp as mtmd
except (OSError, RuntimeError):
    pytest.skip("this build of llama-cpp-python has no libmtmd", allow_module_level=True)

MODELS: dict[str, tuple[str, Kind]] = {
    "janus_pro": ("llama", "janus_pro"),
    "gemma3": ("gemma3", "gemma3"),
    "idefics3": ("llama", "idefics3"),
    "qwen2vl": ("qwen2vl", "qwen2vl_merger"),
    "qwen3vl": ("qwen3vl", "qwen3vl_merger"),
    "qwen35": ("qwen35", "qwen2vl_merger"),
}
"""Architectures and projectors: the last ones count rows and columns as positions, one of them with
layers whose state moves on."""
Logits = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def configured(folder: Path, name: str, **changes: object) -> Configuration:
    """A small model of this name with its projector."""
    architecture, kind = MODELS[name]
    words = WITH_WORDS if kind == "idefics3" else {}
    configuration = Configuration(
        model_path=filled_model(folder / "model.gguf", architecture, **words),
        mmproj_path=filled_projector(folder / "mmproj.gguf", kind),
        n_ctx=1024,
        n_threads=1,
        speculation=SpeculationSettings(predictor=PredictorName.OFF),
    )
    return replace(configuration, **changes)  # type: ignore[arg-type]  # fields of it


@pytest.fixture(params=MODELS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LlamaCppBackend]:
    opened = LlamaCppBackend(configured(tmp_path, request.param), NativeLog())
    yield opened
    opened.close()


@pytest.fixture
def picture(tmp_path: Path) -> Image:
    return read_image(png(tmp_path / "a picture.png", width=100, height=60), "a picture.png")


def line_of(backend: LlamaCppBackend, text: str) -> list[int]:
    return text_tokens(text, backend.vocabulary)


def logits_of(backend: LlamaCppBackend, tokens: list[int]) -> Logits:
    sequence = backend.open()
    sequence.crop(0)
    return sequence.verify(tokens[-1:], unread=tokens[:-1]).logits[0].copy()


def logits_of_libmtmd(backend: LlamaCppBackend, before: str, path: Path, after: str) -> Logits:
    """What `mtmd_helper_eval_chunks` computes for the same text and image."""
    assert backend.projector is not None
    own, context = backend.projector._native, backend.native
    data = path.read_bytes()
    buffer = (ctypes.c_ubyte * len(data)).from_buffer_copy(data)
    bitmap = mtmd.mtmd_helper_bitmap_init_from_buf(own, buffer, len(data), False)
    marked = f"{before}<__media__>{after}".encode()
    text = mtmd.mtmd_input_text(marked, len(marked), False, True)
    chunks = mtmd.mtmd_input_chunks_init()
    bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
    assert mtmd.mtmd_tokenize(own, chunks, ctypes.byref(text), bitmaps, 1) == 0
    backend.open().crop(0)
    end = llama_cpp.llama_pos()
    status = mtmd.mtmd_helper_eval_chunks(
        own, context, chunks, 0, 0, backend.n_batch, True, ctypes.byref(end)
    )
    assert status == 0
    row = llama_cpp.llama_get_logits_ith(context, -1)
    found = np.ctypeslib.as_array(row, (backend.vocabulary.n_tokens,)).copy()
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    mtmd.mtmd_input_chunks_free(chunks)
    mtmd.mtmd_bitmap_free(bitmap)
    return found


def test_the_logits_after_an_image_are_those_of_libmtmd(
    backend: LlamaCppBackend, picture: Image
) -> None:
    ours = logits_of(backend, line_of(backend, f"look: {picture.reference} and say what it is"))
    reference = logits_of_libmtmd(backend, "look: ", picture.path, " and say what it is")
    assert np.array_equal(ours, reference)


def test_an_equal_image_has_equal_tokens_and_another_one_has_others(
    backend: LlamaCppBackend, picture: Image, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.png"
    copy.write_bytes(picture.path.read_bytes())
    tokens = line_of(backend, picture.reference)
    assert line_of(backend, read_image(copy, "copy.png").reference) == tokens
    other = read_image(png(tmp_path / "b.png", seed=1, width=100, height=60), "b.png")
    pairs = zip(tokens, line_of(backend, other.reference), strict=True)
    assert all((a == b) == (a >= 0) for a, b in pairs)


def test_another_projector_has_other_tokens_of_an_image(tmp_path: Path, picture: Image) -> None:
    configuration = configured(tmp_path, "janus_pro")
    assert configuration.mmproj_path is not None
    found = []
    for seed in (5, 6):
        filled_projector(configuration.mmproj_path, seed=seed)
        backend = LlamaCppBackend(configuration, NativeLog())
        found.append(backend.vocabulary.image_tokens(picture))
        backend.close()
    assert not set(found[0]) & set(found[1])


def test_an_image_segment_is_cropped_whole_or_not_at_all(
    backend: LlamaCppBackend, picture: Image
) -> None:
    tokens = line_of(backend, f"a {picture.reference} b")
    whole = logits_of(backend, tokens)
    sequence = backend.open()
    sequence.prefill(tokens[:-1])
    start = next(n for n, token in enumerate(tokens) if starts_image(token))
    diverging = [*tokens[: start + 2], tokens[start + 2] - 2, *tokens[start + 3 :]]
    assert rewind(sequence, diverging) in (start, 0)
    assert np.array_equal(logits_of(backend, tokens), whole)


def test_a_step_that_cannot_be_decoded_decodes_none_of_its_images(
    backend: LlamaCppBackend, picture: Image
) -> None:
    tokens = backend.vocabulary.image_tokens(picture)
    sequence = backend.open()
    sequence.prefill((1, 2))
    for too_many in (
        Step(sequence, (1,) * (backend.n_rows + 1), unread=(3, *tokens)),
        Step(sequence, (1, 2), unread=(*tokens, *(1,) * backend.n_batch)),
        Step(sequence, (1,), unread=(*tokens, *(1,) * backend.n_ctx)),
    ):
        with pytest.raises(ContextFullError):
            backend.verify_batch([too_many])
        assert list(sequence.tokens) == [1, 2]


def test_a_saved_state_of_an_image_needs_no_file(backend: LlamaCppBackend, picture: Image) -> None:
    tokens = line_of(backend, f"a {picture.reference} b")
    sequence = backend.open()
    sequence.prefill(tokens[:-1])
    state = bytes(sequence.save())
    whole = sequence.decode(tokens[-1]).logits[0].copy()
    picture.path.unlink()
    sequence.load(tokens[:-1], [state])
    assert np.array_equal(sequence.decode(tokens[-1]).logits[0], whole)


@pytest.mark.parametrize("n_slots", [1, 2])
@pytest.mark.parametrize("name", ["janus_pro", "qwen2vl", "qwen3vl"])
def test_states_around_an_image_are_saved_and_gone_back_in(
    name: str, n_slots: int, tmp_path: Path, picture: Image
) -> None:
    backend = LlamaCppBackend(configured(tmp_path, name, n_slots=n_slots), NativeLog())
    tokens = line_of(backend, f"a {picture.reference} b {picture.reference} c")
    seen = [place for place, token in enumerate(tokens) if token < 0]
    ends = (seen[0], seen[-1] + 1, len(tokens) - 1)
    sequence = backend.open()
    assert backend.can_slice is (name == "janus_pro"), "rows of images are no places in a line"
    segments = []
    for start, end in pairwise((0, *ends)):
        sequence.prefill(tokens[start:end])
        if backend.can_slice:
            segments.append(bytes(sequence.save(start)))
    saved = [[bytes(sequence.save())], segments] if segments else [[bytes(sequence.save())]]
    if not segments:
        with pytest.raises(StateError):
            sequence.save(seen[-1] + 1)
    expected = sequence.decode(tokens[-1]).logits[0].copy()
    sequence.crop(len(tokens) - 1)
    for states in saved:
        sequence.load(tokens[:-1], states)
        assert np.array_equal(sequence.decode(tokens[-1]).logits[0], expected)

    assert not sequence.can_crop(seen[0] + 1)
    for length in (seen[-1] + 1, seen[0]):
        sequence.crop(length)
        sequence.prefill(tokens[length:-1])
        assert np.array_equal(sequence.decode(tokens[-1]).logits[0], expected)
    backend.close()


@pytest.mark.parametrize("text", ["a {} b", "a {}"])
def test_a_stop_after_an_image_leaves_the_decoded_tokens(
    text: str, tmp_path: Path, picture: Image
) -> None:
    backend = LlamaCppBackend(configured(tmp_path, "qwen2vl"), NativeLog())
    tokens = line_of(backend, text.format(picture.reference))
    if not text.endswith("b"):
        tokens = tokens[: 1 + max(n for n, token in enumerate(tokens) if token < 0)]
    sequence = backend.open()
    sequence.prefill(tokens)
    backend.abort()
    with pytest.raises(DecodeAborted):
        sequence.prefill(range(40, 60))
    backend.clear_abort()
    assert list(sequence.tokens) == tokens
    found = sequence.decode(9).logits[0].copy()
    sequence.crop(0)
    sequence.prefill(tokens)
    assert np.array_equal(sequence.decode(9).logits[0], found)
    backend.close()


def test_a_stop_within_an_image_leaves_what_stood_before_it(tmp_path: Path, picture: Image) -> None:
    backend = LlamaCppBackend(configured(tmp_path, "qwen2vl", n_ubatch=32, n_batch=32), NativeLog())
    tokens = line_of(backend, f"ab {picture.reference} c")
    expected = logits_of(backend, tokens)
    sequence = backend.open()
    start = next(place for place, token in enumerate(tokens) if token < 0)
    sequence.prefill(tokens[:start])
    backend.abort()
    with pytest.raises(DecodeAborted):
        sequence.prefill(tokens[start:-1])
    backend.clear_abort()
    assert list(sequence.tokens) == tokens[:start]
    again = sequence.verify(tokens[-1:], unread=tokens[start:-1]).logits[0]
    assert np.array_equal(again, expected)
    backend.close()


def asked(session: Session, text: str, **changes: object) -> tuple[PromptReady, Finished]:
    request = GenerationRequest((Message("user", text),), max_tokens=24, seed=3)
    events = list(session.generate(replace(request, **changes), Cancellation()))  # type: ignore[arg-type]  # fields of it
    ready = next(event for event in events if isinstance(event, PromptReady))
    return ready, next(event for event in events if isinstance(event, Finished))


@pytest.mark.parametrize("name", ["gemma3", "janus_pro", "qwen2vl", "qwen35"])
def test_a_chat_with_an_image_has_the_same_text_with_any_predictor(
    name: str, tmp_path: Path, picture: Image
) -> None:
    question = f"as as as {picture.reference} as as as"
    plain = configured(tmp_path, name, n_ubatch=1 if name != "gemma3" else 512)
    drafting = replace(plain, draft=DraftConfiguration(plain.model_path, n_ctx=256))
    replies = []
    for predictor in (PredictorName.OFF, PredictorName.SUFFIX, PredictorName.DRAFT):
        if predictor is PredictorName.DRAFT and name in ("gemma3", "qwen35"):
            continue
        speculation = SpeculationSettings(
            predictor=predictor, controller=ControllerName.FIXED, draft_min_confidence=0.0
        )
        configuration = drafting if predictor is PredictorName.DRAFT else plain
        session = load_session(replace(configuration, speculation=speculation)).session
        replies.append(asked(session, question)[1])
        session.close()
    assert {reply.token_ids for reply in replies} == {replies[0].token_ids}
    assert name in ("gemma3", "qwen35") or replies[-1].stats.n_verified > 0


@pytest.mark.parametrize("name", ["idefics3", "qwen2vl"])
def test_parallel_chats_with_images_have_the_texts_that_each_has_alone(
    name: str, tmp_path: Path, picture: Image
) -> None:
    other = read_image(png(tmp_path / "b.png", seed=1, width=100, height=60), "b.png")
    texts = (f"{picture.reference} what is it?", f"and {other.reference} what is that?")
    two = configured(tmp_path, name, n_slots=2, n_ctx=2048)
    alone = []
    for text in texts:
        session = load_session(two).session
        alone.append(asked(session, text)[1].token_ids)
        session.close()
    session = load_session(two).session
    both = [
        session.begin(
            GenerationRequest((Message("user", text),), max_tokens=24, seed=3), Cancellation()
        )
        for text in texts
    ]
    reported: list[list[object]] = [[], []]
    while not all(each.is_over for each in both):
        session.step()
        for each, events in zip(both, reported, strict=True):
            events.extend(each.take())
    ends = [event for events in reported for event in events if isinstance(event, Finished)]
    assert [end.token_ids for end in ends] == alone
    session.close()


@pytest.mark.parametrize("name", ["janus_pro", "qwen2vl"])
def test_the_next_turn_reads_no_image_again_and_another_image_is_read(
    name: str, tmp_path: Path, picture: Image
) -> None:
    session = load_session(configured(tmp_path, name)).session
    first, _ = asked(session, f"{picture.reference} what is it?")
    again, _ = asked(session, f"{picture.reference} what is it not?")
    assert first.n_hot == 0
    assert again.n_hot > session.count_tokens(picture.reference)
    other = read_image(png(tmp_path / "b.png", seed=1, width=100, height=60), "b.png")
    diverging, _ = asked(session, f"{other.reference} what is it?")
    assert diverging.n_hot < again.n_hot - 10
    session.close()


def test_a_missing_image_is_reported_unless_a_saved_state_has_it(
    tmp_path: Path, picture: Image
) -> None:
    session = load_session(configured(tmp_path, "janus_pro")).session
    question = f"{picture.reference} what is it?"
    _, reply = asked(session, question)
    picture.path.unlink()
    _, again = asked(session, question)
    assert again.token_ids == reply.token_ids
    session.close()
    fresh = load_session(configured(tmp_path, "janus_pro")).session
    with pytest.raises(ImageError, match=r"a picture\.png"):
        asked(fresh, question)
    ready, finished = asked(fresh, "and without?")
    assert finished.token_ids
    assert ready.n_prompt > 0
    fresh.close()


def test_a_changed_file_and_forged_sizes_are_refused(tmp_path: Path, picture: Image) -> None:
    session = load_session(configured(tmp_path, "idefics3")).session
    forged = replace(picture, width=33, height=900)
    with pytest.raises(ImageError, match="33 x 900"):
        asked(session, f"{forged.reference} hm")
    png(picture.path, seed=9, width=100, height=60)
    with pytest.raises(ImageError, match="not the file"):
        asked(session, f"{picture.reference} hm")
    session.close()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("janus_pro", {"mmproj_path": None}, r"a picture\.png.*--mmproj"),
        ("gemma3", {"n_ubatch": 2}, "n_batch and n_ubatch"),
        ("idefics3", {"model_path": "wordless"}, "belongs to another model"),
    ],
    ids=["no projector", "small batches", "no words for images"],
)
def test_an_image_that_cannot_be_read_is_refused_with_what_lacks(
    name: str, changes: dict[str, object], message: str, tmp_path: Path, picture: Image
) -> None:
    if changes.get("model_path"):
        changes = {"model_path": filled_model(tmp_path / "wordless.gguf", "llama")}
    session = load_session(configured(tmp_path, name, **changes)).session
    with pytest.raises(ImageError, match=message):
        asked(session, f"{picture.reference} what is it?")
    session.close()


def test_an_unusable_projector_is_reported_and_text_works(tmp_path: Path, picture: Image) -> None:
    configuration = configured(tmp_path, "janus_pro")
    wide = filled_projector(tmp_path / "wide.gguf", n_embd=256)
    for changes, message in (
        ({"mmproj_path": wide}, r"wide\.gguf"),
        ({"mmproj_path": tmp_path / "no.gguf"}, r"no\.gguf"),
    ):
        backend = LlamaCppBackend(replace(configuration, **changes), NativeLog())
        with pytest.raises(ImageError, match=rf"a picture\.png.*{message}"):
            backend.vocabulary.image_tokens(picture)
        assert re.search(message, backend.notes[0])
        assert backend.open().decode(5).logits.any()
        backend.close()


def test_images_of_odd_sizes_are_read_or_refused_and_end_nothing(
    backend: LlamaCppBackend, tmp_path: Path
) -> None:
    n_refused = 0
    for width, height in ((1, 900), (900, 1), (1, 1), (7, 5)):
        path = png(tmp_path / f"{width}.png", width=width, height=height)
        tokens = line_of(backend, f"a {read_image(path, 'x').reference} b")
        try:
            assert np.isfinite(logits_of(backend, tokens)).all()
        except ImageError:
            n_refused += 1
    assert n_refused <= 2, "only lines of pixels are"
    huge = Image("x", tmp_path / "x.png", "0" * 64, 99_999, 99_999)
    with pytest.raises(ImageError, match="pixels"):
        line_of(backend, huge.reference)


def test_its_memory_is_reported(tmp_path: Path) -> None:
    loaded = load_session(configured(tmp_path, "janus_pro"))
    kinds = {buffer.kind for buffer in loaded.loaded.buffers if buffer.owner == "projector"}
    loaded.session.close()
    assert kinds == {"model", "compute"}
