"""Saved states of small made models of every kind of cache, by the real llama.cpp."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.base import Sequence
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.errors import StateError
from tests.contracts.backend import SeveralSequencesContract, StateContract
from tests.engine.backends.opened import Opened, settings
from tests.support.filled_models import SHAPES, filled_model

LINE = [3 + (7 * n + n * n // 5) % 250 for n in range(1200)]
WHOLE = ("mamba", "rwkv7", "jamba", "lfm2", "qwen35", "gemma3", "gpt-oss")
WINDOWED = ("gemma3", "gpt-oss")
SLICED = ("llama", "deepseek2", "qwen2vl")
KINDS = [
    {},
    {"flash_attention": "off"},
    {"type_k": "q8_0", "type_v": "q4_0"},
    {"n_slots": 2, "n_ctx": 1024},
]


def refuses(name: str, changes: Mapping[str, object]) -> bool:
    """Whether llama.cpp does not open it: its latent cache takes no other type here."""
    return name == "deepseek2" and "type_k" in changes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    for name in SHAPES:
        filled_model(folder / f"{name}.gguf", name)
    return folder


@pytest.fixture
def opened(folder: Path, log: NativeLog) -> Iterator[Opened]:
    opened = Opened(folder, log)
    yield opened
    opened.close()


def read(sequence: Sequence, n: int) -> None:
    for start in range(len(sequence.tokens), n, 64):
        sequence.prefill(LINE[start : min(start + 64, n)])


def rows(sequence: Sequence, n: int = 8) -> NDArray[np.float32]:
    start = len(sequence.tokens)
    return np.stack([sequence.decode(LINE[start + k]).logits[0].copy() for k in range(n)])


def are_alike(name: str, one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """To the bit, but for windows: their cells lie in another order after a restore."""
    return np.allclose(one, other, atol=1e-2) if name in WINDOWED else np.array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "changes"), [(n, c) for n in SHAPES for c in KINDS if not refuses(n, c)], ids=str
)
def test_a_restored_state_gives_the_same_rows(
    opened: Opened, name: str, changes: dict[str, object]
) -> None:
    backend = opened(name, **changes)
    sequence = backend.open()
    read(sequence, 100)
    state = sequence.save()
    expected = rows(sequence)
    sequence.load(LINE[:100], [state])
    assert are_alike(name, rows(sequence), expected)
    fresh = opened(name, **changes).open()
    fresh.load(LINE[:100], [state])
    assert are_alike(name, rows(fresh), expected)
    if backend.n_sequences > 1:
        other = backend.open()
        other.load(LINE[:100], [state])
        assert are_alike(name, rows(other), expected)


@pytest.mark.parametrize(
    ("name", "changes"), [(n, c) for n in SLICED for c in KINDS if not refuses(n, c)], ids=str
)
def test_segments_join_to_the_very_bytes_and_rows_of_the_whole(
    opened: Opened, name: str, changes: dict[str, object]
) -> None:
    backend = opened(name, **changes)
    assert backend.can_slice
    sequence = backend.open()
    segments = []
    for start, end in pairwise((0, 37, 38, 100)):
        read(sequence, end)
        segments.append(sequence.save(start))
    whole = sequence.save()
    expected = rows(sequence)
    sequence.load(LINE[:100], segments)
    assert bytes(sequence.save()) == bytes(whole)
    assert np.array_equal(rows(sequence), expected)
    sequence.load(LINE[:38], segments[:2])
    branched = rows(sequence)
    sequence.load(LINE[:100], [whole])
    sequence.crop(38)
    assert np.array_equal(rows(sequence), branched)


@pytest.mark.parametrize("name", WHOLE)
def test_windows_and_recurrent_states_are_whole(opened: Opened, name: str) -> None:
    backend = opened(name)
    assert not backend.can_slice
    assert backend.can_crop == (name in WINDOWED)
    sequence = backend.open()
    read(sequence, 64)
    with pytest.raises(StateError, match="saved in parts"):
        sequence.save(10)


def test_a_saved_window_cannot_be_cropped_before_its_start(opened: Opened) -> None:
    for swa_full in (False, True):
        sequence = opened("gemma3", swa_full=swa_full).open()
        read(sequence, 200)
        assert sequence.can_crop(190)
        state = sequence.save()
        sequence.crop(199)
        expected = rows(sequence, 8)
        sequence.load(LINE[:200], [state])
        assert not sequence.can_crop(198)
        assert not sequence.can_crop(100)
        sequence.crop(199)
        assert are_alike("gemma3", rows(sequence, 8), expected), "a token's window begins with it"
        assert sequence.can_crop(203)
        assert not sequence.can_crop(198)


def test_states_of_other_settings_are_refused(opened: Opened) -> None:
    changes: list[dict[str, object]] = [
        {"type_k": "q8_0"},
        {"type_v": "q8_0"},
        {"flash_attention": "off"},
        {"n_slots": 2},
    ]
    sequence = opened("llama").open()
    read(sequence, 60)
    state = sequence.save()
    for change in changes:
        other = opened("llama", **change)
        assert other.can_slice
        target = other.open()
        with pytest.raises(StateError):
            target.load(LINE[:60], [state])
        assert list(target.tokens) == []
    # A cache of qwen2 has llama's shape: only the namespace distinguishes their states.
    for name in set(SHAPES) - {"llama", "qwen2"}:
        other = opened(name)
        other.warm_up()
        with pytest.raises(StateError):
            other.open().load(LINE[:60], [state])


@pytest.mark.parametrize("name", SHAPES)
def test_damaged_states_are_refused_or_differ_in_numbers_only(opened: Opened, name: str) -> None:
    rng = np.random.default_rng(5)
    backend = opened(name, n_slots=2, n_ctx=512)
    sequence = backend.open()
    read(sequence, 48)
    state = bytes(sequence.save())
    n_refused = 0
    for n in range(1000):
        damaged = bytearray(state)
        if n % 4:
            at = int(rng.integers(min(len(state), 700) if n % 4 == 1 else len(state)))
            damaged[at] ^= 1 << int(rng.integers(8))
        else:
            del damaged[int(rng.integers(len(state))) :]
        try:
            sequence.load(LINE[:48], [damaged])
        except StateError:
            n_refused += 1
            assert list(sequence.tokens) == []
        else:
            assert list(sequence.tokens) == LINE[:48]
            sequence.decode(3)
    assert n_refused > 250
    sequence.load(LINE[:48], [state])
    assert bytes(sequence.save()) == state


class TestStatesOfMadeModels(StateContract):
    @pytest.fixture(scope="class", params=sorted(SHAPES))
    @classmethod
    def backend(
        cls, request: pytest.FixtureRequest, folder: Path, log: NativeLog
    ) -> Iterator[LlamaCppBackend]:
        backend = LlamaCppBackend(settings(folder / f"{request.param}.gguf"), log)
        yield backend
        backend.close()

    @pytest.fixture
    def line(self) -> list[int]:
        return LINE


@pytest.mark.model
class TestStatesOfRealModels(TestStatesOfMadeModels):
    @pytest.fixture(scope="class", params=["starter_path", "gemma_path"])
    @classmethod
    def backend(cls, request: pytest.FixtureRequest, log: NativeLog) -> Iterator[LlamaCppBackend]:
        path: Path = request.getfixturevalue(request.param)
        backend = LlamaCppBackend(settings(path), log)
        yield backend
        backend.close()


class TestSeparateSequences(SeveralSequencesContract):
    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, folder: Path, log: NativeLog) -> Iterator[LlamaCppBackend]:
        backend = LlamaCppBackend(settings(folder / "llama.gguf", n_slots=3, n_ctx=768), log)
        yield backend
        backend.close()

    @pytest.fixture
    def line(self) -> list[int]:
        return LINE
