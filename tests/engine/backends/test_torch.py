"""The contract on torch, and its logits beside llama.cpp's on the same file."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("gguf")

from engine.backends.base import Backend
from engine.backends.llama_cpp.log import NativeLog
from engine.backends.torch.backend import TorchBackend
from engine.configuration import (
    Adapter,
    ControllerName,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
)
from engine.errors import EngineError, ModelLoadError
from engine.events import Finished
from engine.load import load_session
from engine.requests import Cancellation, GenerationRequest
from tests.contracts.backend import (
    BackendContract,
    SeveralSequencesContract,
    StateContract,
)
from tests.engine.backends.torch_models import llama_cpp_rows, rows_of, settings
from tests.support.filled_models import filled_model

TEXT = (
    "A cache keeps what was computed so that nobody has to compute it again. The keys and values "
    "of earlier tokens are such a thing: a reply of a thousand tokens would otherwise pay for a "
    "million. What it costs is memory, and memory is what there is least of."
)
ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3"]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return filled_model(folder / f"{request.param}.gguf", request.param)


def random_line(n_tokens: int) -> list[int]:
    rng = np.random.default_rng(1)
    return [int(token) for token in rng.integers(3, 259, n_tokens)]


class TestStates(BackendContract, StateContract):
    tolerance = 1e-4

    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, filled: Path, log: NativeLog) -> Iterator[TorchBackend]:
        backend = TorchBackend(settings(filled), log)
        yield backend
        backend.close()

    @pytest.fixture(scope="class")
    @classmethod
    def line(cls) -> list[int]:
        return random_line(60)

    def test_pieces_join_to_the_tokenised_text(self, backend: Backend) -> None:
        pytest.skip("a made vocabulary has no text; a real one is tested below")


class TestSeveralSequences(SeveralSequencesContract):
    changes: ClassVar[dict[str, object]] = {}

    @pytest.fixture(scope="class")
    @classmethod
    def backend(
        cls, tmp_path_factory: pytest.TempPathFactory, log: NativeLog
    ) -> Iterator[TorchBackend]:
        path = filled_model(tmp_path_factory.mktemp("models") / "llama.gguf", "llama")
        backend = TorchBackend(settings(path, n_slots=3, **cls.changes), log)
        yield backend
        backend.close()

    @pytest.fixture(scope="class")
    @classmethod
    def line(cls) -> list[int]:
        return random_line(60)


class TestPagedSequences(TestSeveralSequences):
    changes: ClassVar[dict[str, object]] = {"kv_cache": "paged"}


def test_logits_are_llama_cpps_on_the_same_file(filled: Path, log: NativeLog) -> None:
    line = random_line(120)
    backend = TorchBackend(settings(filled), log)
    ours = rows_of(backend, line)
    backend.close()
    theirs = llama_cpp_rows(filled, line, log)
    assert np.abs(ours - theirs).max() < 2e-3 * np.abs(theirs).max()


@pytest.mark.model
def test_tokens_and_logits_of_a_real_model_are_llama_cpps(
    starter_path: Path, log: NativeLog
) -> None:
    backend = TorchBackend(settings(starter_path), log)
    line = backend.vocabulary.tokenize(TEXT, add_special=True, parse_special=False)
    ours = rows_of(backend, line)
    assert b"".join(map(backend.vocabulary.piece, line)).decode() == TEXT
    backend.close()
    theirs = llama_cpp_rows(starter_path, line, log)
    assert np.mean(ours.argmax(1) == theirs.argmax(1)) > 0.9, "its activations are 8 bits there"


def test_an_architecture_without_code_is_named_with_those_there_are(
    tmp_path: Path, log: NativeLog
) -> None:
    path = filled_model(tmp_path / "jamba.gguf", "jamba")
    with pytest.raises(ModelLoadError, match=r"jamba.*mamba"):
        TorchBackend(settings(path), log)


def test_a_context_that_does_not_fit_is_refused_with_one_that_fits(
    tmp_path: Path, log: NativeLog
) -> None:
    path = filled_model(tmp_path / "llama.gguf", "llama")
    with pytest.raises(ModelLoadError, match=r"context of \d+"):
        TorchBackend(settings(path, n_ctx=1 << 36), log)


def test_weights_of_two_bytes_give_nearly_the_same_logits(tmp_path: Path, log: NativeLog) -> None:
    path, line = filled_model(tmp_path / "llama.gguf", "llama"), random_line(60)
    rows = {}
    for dtype in ("f32", "f16", "bf16"):
        backend = TorchBackend(settings(path, dtype=dtype), log)
        rows[dtype] = rows_of(backend, line)
        sequence = backend.open()
        sequence.prefill(line[:59])  # more rows than are multiplied one by one
        after = sequence.decode(line[59]).logits[0]
        assert np.abs(after - rows[dtype][59]).max() < 0.05 * np.abs(after).max()
        backend.close()
    largest = np.abs(rows["f32"]).max()
    assert np.abs(rows["f16"] - rows["f32"]).max() < 0.01 * largest
    assert np.abs(rows["bf16"] - rows["f32"]).max() < 0.12 * largest


def test_an_adapter_is_refused(tmp_path: Path, log: NativeLog) -> None:
    path = filled_model(tmp_path / "llama.gguf", "llama")
    with pytest.raises(ModelLoadError, match="adapters"):
        TorchBackend(settings(path, adapters=(Adapter(path),)), log)


def test_a_state_space_has_llama_cpps_logits_and_is_cropped_after_a_draft(
    tmp_path: Path, log: NativeLog
) -> None:
    path, line = filled_model(tmp_path / "mamba.gguf", "mamba"), random_line(90)
    backend = TorchBackend(settings(path), log)
    ours = rows_of(backend, line)
    sequence = backend.open()
    sequence.prefill(line[:40])
    state = sequence.save()
    sequence.verify(line[50:60])
    sequence.crop(40)
    assert np.abs(sequence.verify(line[40:45]).logits - ours[40:45]).max() < 1e-3
    sequence.load(line[:40], [state])
    assert np.abs(sequence.verify(line[40:45]).logits - ours[40:45]).max() < 1e-3
    assert not sequence.can_crop(20)
    assert not backend.can_slice
    backend.close()
    theirs = llama_cpp_rows(path, line, log)
    assert np.abs(ours - theirs).max() < 2e-3 * np.abs(theirs).max()


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_recurrent_states_have_the_requested_type(
    tmp_path: Path, log: NativeLog, kind: str
) -> None:
    path, line = filled_model(tmp_path / "mamba.gguf", "mamba"), random_line(40)
    backend = TorchBackend(settings(path, kv_cache=kind), log)
    exact = TorchBackend(settings(path), log, like=backend)
    assert backend.kv_bytes * (4 if kind == "f32" else 8) == exact.kv_bytes * 4
    sequence = backend.open()
    together = sequence.verify(line[:17]).logits.copy()
    sequence.crop(0)
    single = np.stack([sequence.decode(token).logits[0].copy() for token in line[:17]])
    assert np.abs(together - single).max() < 2e-2, "batches read the cache"
    far = np.abs(rows_of(exact, line) - rows_of(backend, line)).max()
    assert bool(far == 0) is (kind == "f32")
    exact.close()
    backend.close()
    with pytest.raises(ModelLoadError, match="q4_0"):
        TorchBackend(settings(path, kv_cache="q4_0"), log)


@pytest.mark.parametrize(
    "change", [{"kv_trace": Path("trace.jsonl")}, {"decode_plan": "128"}, {"compile": "on"}]
)
def test_what_is_of_attention_is_refused_for_a_state_space(
    tmp_path: Path, log: NativeLog, change: dict[str, object]
) -> None:
    path = filled_model(tmp_path / "mamba.gguf", "mamba")
    with pytest.raises(ModelLoadError, match="attention"):
        TorchBackend(settings(path, **change), log)


def test_a_closed_backend_refuses_everything_in_words(llama: Path, log: NativeLog) -> None:
    backend = TorchBackend(settings(llama), log)
    sequence = backend.open()
    sequence.prefill((1, 2))
    state = sequence.save()
    backend.close()
    backend.close()
    asked: tuple[Callable[[], object], ...] = (
        backend.open,
        backend.warm_up,
        lambda: sequence.decode(1),
        lambda: sequence.prefill((1,)),
        sequence.save,
        lambda: sequence.load((1, 2), [state]),
        lambda: backend.vocabulary.tokenize("a", add_special=True, parse_special=True),
    )
    for ask in asked:
        with pytest.raises(EngineError):
            ask()
    sequence.crop(0)
    sequence.close()


def test_missing_torch_is_reported_with_the_command_that_installs_it(
    tmp_path: Path,
) -> None:
    path = filled_model(tmp_path / "llama.gguf", "llama")
    code = f"""
import sys
sys.modules["torch"] = None
from pathlib import Path
from engine.configuration import Configuration
from engine.errors import EngineError, ModelLoadError
from engine.load import load_session
try:
    load_session(Configuration(Path({str(path)!r}), n_ctx=256, backend="torch"))
except ModelLoadError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'kvchat[torch]'" in done.stdout


def reply(path: Path, **changes: object) -> Finished:
    loaded = load_session(settings(path, **changes))
    request = GenerationRequest(
        messages=(), raw_prompt="the cache of the cache of the", sampling=SamplingSettings(),
        max_tokens=40,
    )  # fmt: skip
    *_, finished = loaded.session.generate(request, Cancellation())
    loaded.session.close()
    assert isinstance(finished, Finished)
    return finished


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "mamba"])
def test_a_reply_is_the_same_with_drafts_and_without(tmp_path: Path, architecture: str) -> None:
    path = filled_model(tmp_path / "model.gguf", architecture)
    off = SpeculationSettings(predictor=PredictorName.OFF)
    drafts = SpeculationSettings(
        predictor=PredictorName.LOOKUP, controller=ControllerName.FIXED, lookup_pattern_min=1
    )
    plain, drafted = reply(path, speculation=off), reply(path, speculation=drafts)
    assert drafted.stats.n_drafted > 0
    assert drafted.token_ids == plain.token_ids
