"""The contract on real models, with one row per ubatch, where rows equal single decodes."""

import gc
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.backends.base import Step
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.configuration import Configuration
from engine.errors import CropUnsupportedError, EngineError, ModelLoadError
from engine.images import Image
from engine.load import load_session
from engine.memory.server_log import buffers_in
from tests.contracts.backend import BackendContract, BatchContract
from tests.support.filled_models import filled_model

TEXT = (
    "A cache keeps what was computed so that nobody has to compute it again. The keys and values "
    "of earlier tokens are such a thing: a reply of a thousand tokens would otherwise pay for a "
    "million. What it costs is memory, and memory is what there is least of."
)
pytestmark = pytest.mark.model


def settings(path: Path, **changes: object) -> Configuration:
    base = Configuration(path, n_ctx=256, n_batch=64, n_ubatch=1, flash_attention="on", n_threads=1)
    return replace(base, **changes)  # type: ignore[arg-type]  # fields by name


class OnALineOfText:
    @pytest.fixture(scope="class")
    @classmethod
    def line(cls, backend: LlamaCppBackend) -> list[int]:
        return backend.vocabulary.tokenize(TEXT, add_special=True, parse_special=False)


class TestDenseModel(OnALineOfText, BackendContract):
    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, starter_path: Path, log: NativeLog) -> Iterator[LlamaCppBackend]:
        backend = LlamaCppBackend(settings(starter_path), log)
        yield backend
        backend.close()

    def test_buffers_are_read_from_the_log(self, backend: LlamaCppBackend) -> None:
        kinds = {buffer.kind for buffer in backend.buffers}
        assert {"model", "KV", "compute", "output"} <= kinds
        [output] = (buffer.nbytes for buffer in backend.buffers if buffer.kind == "output")
        rows_bytes = backend.n_rows * backend.vocabulary.n_tokens * 4
        assert output == pytest.approx(rows_bytes, rel=0.03), "as large as a longest draft makes it"
        assert abs(backend.kv_bytes - 2 * 30 * 3 * 64 * 256 * 2) <= 5300, "two decimals of a MiB"

    def test_control_tokens_are_read_from_text_only_when_asked(
        self, backend: LlamaCppBackend
    ) -> None:
        vocabulary = backend.vocabulary
        parsed = vocabulary.tokenize("<|im_end|>", add_special=False, parse_special=True)
        plain = vocabulary.tokenize("<|im_end|>", add_special=False, parse_special=False)
        assert parsed == [vocabulary.eos]
        assert len(plain) > 1
        assert vocabulary.is_end(parsed[0])
        assert vocabulary.piece(parsed[0]) == b""
        assert vocabulary.piece(parsed[0], special=True) == b"<|im_end|>"
        assert vocabulary.piece(0, special=True) == b"<|endoftext|>"


class TestSeparateStreams(OnALineOfText, BatchContract):
    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, starter_path: Path, log: NativeLog) -> Iterator[LlamaCppBackend]:
        backend = LlamaCppBackend(settings(starter_path, n_slots=3, n_ctx=768), log)
        yield backend
        backend.close()


class TestSlidingWindowModel(OnALineOfText, BackendContract):
    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, gemma_path: Path, log: NativeLog) -> Iterator[LlamaCppBackend]:
        backend = LlamaCppBackend(settings(gemma_path), log)
        yield backend
        backend.close()


@pytest.mark.slow
def test_a_window_that_moved_on_refuses_to_go_back_and_stays_whole(
    gemma_path: Path, log: NativeLog
) -> None:
    backend = LlamaCppBackend(settings(gemma_path, n_ctx=2048, n_batch=512, n_ubatch=256), log)
    sequence = backend.open()
    line = (backend.vocabulary.tokenize(TEXT, add_special=True, parse_special=False) * 40)[:1800]
    for start in range(0, len(line), backend.n_batch):
        sequence.prefill(line[start : start + backend.n_batch])
    assert not sequence.can_crop(100)
    with pytest.raises(CropUnsupportedError, match="512"):
        sequence.crop(100)
    assert len(sequence.tokens) == 1800
    before = sequence.verify(line[:9]).logits.copy()
    sequence.crop(1800)
    assert np.array_equal(sequence.verify(line[:9]).logits, before)
    backend.close()


def test_a_file_that_is_no_model_is_refused_with_the_reason(tmp_path: Path, log: NativeLog) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 64)
    with pytest.raises(ModelLoadError, match=r"broken\.gguf"):
        LlamaCppBackend(settings(broken), log)
    with pytest.raises(ModelLoadError):
        LlamaCppBackend(settings(tmp_path / "none.gguf"), log)


def test_a_model_without_a_vocabulary_is_refused_with_what_to_change(
    tmp_path: Path, log: NativeLog
) -> None:
    bare = filled_model(tmp_path / "bare.gguf", "llama", **{"tokenizer.ggml.model": "none"})
    with pytest.raises(ModelLoadError, match=r"bare\.gguf"):
        LlamaCppBackend(settings(bare), log)


def test_a_model_whose_name_is_no_text_is_opened(tmp_path: Path, log: NativeLog) -> None:
    path = filled_model(tmp_path / os.fsdecode(b"na\xff.gguf"), "llama")
    backend = LlamaCppBackend(settings(path), log)
    assert backend.open().decode(5).logits.any()
    backend.close()


def test_quantised_values_without_flash_attention_are_refused_with_the_reason(
    starter_path: Path, log: NativeLog
) -> None:
    with pytest.raises(ModelLoadError, match=r"off: .*quantiz"):
        LlamaCppBackend(settings(starter_path, type_v="q8_0", flash_attention="off"), log)


def test_the_log_that_llama_cpp_writes_to_lives_until_another_takes_its_place() -> None:
    first = weakref.ref(NativeLog())
    gc.collect()
    assert first() is not None
    second = weakref.ref(NativeLog())
    gc.collect()
    assert (first(), second() is not None) == (None, True)


def test_buffer_lines_are_read_with_device_kind_and_size() -> None:
    lines = [
        "load_tensors:   CPU_Mapped model buffer size =    92.10 MiB",
        "llama_kv_cache:        CPU KV buffer size =   180.00 MiB",
        "llama_kv_cache: size =  180.00 MiB (8192 cells, 30 layers)",
        "sched_reserve:      CUDA0 compute buffer size =    15.51 MiB",
    ]
    found = [(b.device, b.kind, b.owner) for b in buffers_in(lines, "draft")]
    assert found == [
        ("CPU_Mapped", "model", "draft"),
        ("CPU", "KV", "draft"),
        ("CUDA0", "compute", "draft"),
    ]
    assert buffers_in(lines, "target")[1].nbytes == 180 * 1024 * 1024


def test_a_closed_backend_refuses_everything_in_words(tmp_path: Path, log: NativeLog) -> None:
    backend = LlamaCppBackend(settings(filled_model(tmp_path / "m.gguf", "llama")), log)
    sequence = backend.open()
    sequence.verify((1, 2))
    state = bytes(sequence.save())
    backend.close()
    backend.close()
    asked: tuple[Callable[[], object], ...] = (
        backend.open,
        backend.warm_up,
        lambda: sequence.decode(1),
        lambda: sequence.prefill((1,)),
        lambda: backend.verify_batch([Step(sequence, (1,))]),
        sequence.save,
        lambda: sequence.load((1, 2), [state]),
        lambda: backend.set_threads(1),
        lambda: backend.use_adapters(None),
        lambda: backend.vocabulary.tokenize("a", add_special=True, parse_special=True),
        lambda: backend.vocabulary.piece(3),
        lambda: backend.vocabulary.text(3),
        lambda: backend.vocabulary.is_end(3),
        lambda: backend.vocabulary.image_tokens(Image("a", tmp_path, "0" * 64, 8, 8)),
    )
    for ask in asked:
        with pytest.raises(EngineError):
            ask()
    sequence.crop(0)
    sequence.close()
    backend.abort()
    backend.clear_abort()
    assert list(sequence.tokens) == []


@pytest.mark.model
def test_a_loaded_model_has_the_facts_of_its_header(starter_path: Path) -> None:
    session = load_session(settings(starter_path, n_ctx=256))
    loaded = session.loaded
    session.session.close()
    assert (loaded.file_type, loaded.n_ctx_train, loaded.has_chat_template) == ("Q4_1", 8192, True)
    assert "Smol" in loaded.model_name
