"""Requantised states beside those that llama.cpp writes itself for the same tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.llama_cpp import requantisation
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.elements import convert, hadamard_rotate
from engine.backends.llama_cpp.log import CacheHeads, NativeLog
from engine.backends.llama_cpp.requantisation import Rotations, rotations
from engine.backends.llama_cpp.state_format import AttentionLayout, State, find_shape, read_parts
from engine.configuration import KVTypeName, KVTypes
from engine.errors import StateError
from engine.model.ggml_types import GGML_TYPES, TYPES_BY_NAME
from tests.engine.backends.opened import N_BATCH, Opened
from tests.filled_models import filled_model

TYPES: tuple[KVTypeName, ...] = get_args(KVTypeName)
QUANTISED = [name for name in TYPES if TYPES_BY_NAME[name].block_size > 1]
LINE = [3 + (7 * n + n * n // 5) % 250 for n in range(700)]
FIRST_LAYERS = {"llama": 0, "gemma3": 1}
"""The part of a state that has the model's first layer."""
ERRORS = {"q8_0": 0.01, "q5_1": 0.05, "q5_0": 0.05, "q4_1": 0.1, "q4_0": 0.12, "iq4_nl": 0.12}
"""Most that a type changes elements by, as a share of their size: half a step of a block's range.
Keys that were read without turning them back would be off by more than 1."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    heads = {"attention.key_length": 128, "attention.value_length": 128}
    for name in ("llama", "gemma3"):
        filled_model(folder / f"{name}.gguf", name, **heads)
    for name in ("mamba", "jamba", "deepseek2"):
        filled_model(folder / f"{name}.gguf", name)
    return folder


@pytest.fixture
def opened(folder: Path, log: NativeLog) -> Iterator["OpenedTypes"]:
    opened = OpenedTypes(folder, log)
    yield opened
    opened.close()


class OpenedTypes:
    """Opens models with types of keys and values, and closes them."""

    def __init__(self, folder: Path, log: NativeLog) -> None:
        self._opened = Opened(folder, log)

    def __call__(
        self, name: str, k: KVTypeName, v: KVTypeName, **changes: object
    ) -> LlamaCppBackend:
        return self._opened(name, n_ctx=1024, type_k=k, type_v=v, **changes)

    def state(self, name: str, k: KVTypeName, v: KVTypeName, n: int = 100) -> State:
        sequence = self(name, k, v).open()
        for start in range(0, n, N_BATCH):
            sequence.prefill(LINE[start : min(start + N_BATCH, n)])
        return bytes(sequence.save())

    def close(self) -> None:
        self._opened.close()


def tensor(state: State, part: int, index: int) -> tuple[str, NDArray[np.uint8]]:
    """The type and the bytes of a tensor of a state."""
    shape = find_shape(state)
    assert shape is not None
    of = shape[part].tensors[index]
    at = read_parts(state, shape)[part]
    n_bytes = len(at.records) * of.row_bytes
    data = np.frombuffer(state, np.uint8, n_bytes, at.offsets[index])
    return GGML_TYPES[of.type_id].name, data


def floats(state: State, part: int, index: int) -> NDArray[np.float32]:
    """The elements of a tensor as they lie, not turned back."""
    name, data = tensor(state, part, index)
    kind = TYPES_BY_NAME[name]
    values = np.empty(len(data) // kind.block_bytes * kind.block_size, np.float32)
    convert(data, values.view(np.uint8), kind, TYPES_BY_NAME["f32"], rotation=0)
    return values


def n_layers(state: State, part: int) -> int:
    shape = find_shape(state)
    assert shape is not None
    return shape[part].n_layers


def error(found: NDArray[np.float32], exact: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("into", TYPES)
def test_exact_keys_and_values_come_out_to_the_bit_as_llama_cpp_writes_them(
    opened: OpenedTypes, name: str, into: KVTypeName
) -> None:
    exact = opened.state(name, "f32", "f32")
    native = opened.state(name, into, into)
    made = opened(name, into, into).requantise(exact, KVTypes("f32", "f32"))
    assert len(made) == len(native)
    part = FIRST_LAYERS[name]  # what later layers store hangs on what they read of this one
    for index in (0, n_layers(native, part)):
        found, expected = tensor(made, part, index), tensor(native, part, index)
        assert found[0] == expected[0] == into
        assert np.array_equal(found[1], expected[1])


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("from_type", QUANTISED)
def test_what_was_quantised_comes_back_turned_and_with_its_loss_only(
    opened: OpenedTypes, name: str, from_type: KVTypeName
) -> None:
    exact = opened.state(name, "f32", "f32")
    native = opened.state(name, from_type, from_type)
    made = opened(name, "f32", "f32").requantise(native, KVTypes(from_type, from_type))
    part = FIRST_LAYERS[name]
    for index in (0, n_layers(native, part)):
        known = floats(exact, part, index)
        assert 0 < error(floats(made, part, index), known) < ERRORS[from_type]
        assert error(floats(native, part, index), known) > 1  # it lies turned in the state


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize(
    ("k", "v"), [("q8_0", "f16"), ("f16", "q4_0"), ("q4_0", "q8_0"), ("bf16", "q5_1")]
)
def test_keys_and_values_are_converted_apart_and_every_layer_is(
    opened: OpenedTypes, name: str, k: KVTypeName, v: KVTypeName
) -> None:
    exact = opened.state(name, "f32", "f32", 300)
    made = opened(name, k, v).requantise(exact, KVTypes("f32", "f32"))
    back = opened(name, "f32", "f32").requantise(made, KVTypes(k, v))
    shape = find_shape(back)
    assert shape is not None
    for part, of in enumerate(shape):
        for index in range(len(of.tensors)):
            of_type = k if index < of.n_layers else v
            assert tensor(made, part, index)[0] == of_type
            loss = error(floats(back, part, index), floats(exact, part, index))
            assert loss < ERRORS.get(of_type, 0.005)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_requantised_state_is_taken_and_goes_on_as_well_as_a_native_one(
    opened: OpenedTypes, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(state: State, of: KVTypeName) -> NDArray[np.float32]:
        sequence = opened(name, of, of).open()
        sequence.load(LINE[:100], [state])
        return np.stack([sequence.decode(LINE[100 + k]).logits[0].copy() for k in range(6)])

    exact, native = opened.state(name, "f16", "f16"), opened.state(name, "q8_0", "q8_0")
    made = opened(name, "q8_0", "q8_0").requantise(exact, KVTypes("f16", "f16"))
    expected = rows(exact, "f16")
    usual = error(rows(native, "q8_0"), expected)
    assert error(rows(made, "q8_0"), expected) < 2 * usual
    monkeypatch.setattr(requantisation, "rotations", lambda caches, **_: [Rotations(0, 0)] * 2)
    unturned = opened(name, "q8_0", "q8_0").requantise(exact, KVTypes("f16", "f16"))
    assert error(rows(unturned, "q8_0"), expected) > 3 * usual


def test_states_of_the_same_types_are_given_back_as_they_are(opened: OpenedTypes) -> None:
    state = opened.state("llama", "q8_0", "q4_0")
    assert opened("llama", "q8_0", "q4_0").requantise(state, KVTypes("q8_0", "q4_0")) is state


def test_a_hybrid_model_keeps_its_recurrent_state_and_converts_its_attention(
    opened: OpenedTypes,
) -> None:
    state = opened.state("jamba", "f16", "f16")
    made = opened("jamba", "q8_0", "q8_0").requantise(state, KVTypes("f16", "f16"))
    shape = find_shape(made)
    assert shape is not None
    kinds = [isinstance(part, AttentionLayout) for part in shape]
    assert kinds == [True, False]
    assert tensor(made, 0, 0)[0] == "q8_0"
    for index in range(len(shape[1].tensors)):
        assert np.array_equal(tensor(made, 1, index)[1], tensor(state, 1, index)[1])


def test_a_recurrent_state_has_no_cache_types_and_stays_as_it_is(opened: OpenedTypes) -> None:
    state = opened.state("mamba", "f16", "f16")
    assert opened("mamba", "f16", "f16").requantise(state, KVTypes("q8_0", "q8_0")) is state


def test_a_latent_cache_is_refused_with_the_reason(opened: OpenedTypes) -> None:
    state = opened.state("deepseek2", "f16", "f16")
    with pytest.raises(StateError, match=r"latent row .*\(MLA\)"):
        opened("deepseek2", "f16", "f16").requantise(state, KVTypes("q8_0", "q8_0"))


def test_transposed_values_are_converted_among_floats_and_refused_quantised(
    opened: OpenedTypes,
) -> None:
    sequence = opened("llama", "f16", "f16", flash_attention="off").open()
    sequence.prefill(LINE[:40])
    state = bytes(sequence.save())
    exact = opened("llama", "f32", "f32", flash_attention="off")
    made = exact.requantise(state, KVTypes("f16", "f16"))
    assert np.array_equal(floats(made, 0, 1), floats(state, 0, 1))
    assert exact.open().tokens == []
    other = exact.open()
    other.load(LINE[:40], [made])
    assert list(other.tokens) == LINE[:40]
    with pytest.raises(StateError, match="transposed without flash attention"):
        exact.requantise(state, KVTypes("f16", "q8_0"))


@pytest.mark.parametrize("damage", [lambda s: s[:-1], lambda s: s[:40], lambda s: b"\0" * len(s)])
def test_a_damaged_state_is_refused_and_nothing_is_read_beyond_it(
    opened: OpenedTypes, damage: object
) -> None:
    assert callable(damage)
    state = damage(opened.state("llama", "f16", "f16"))
    with pytest.raises(StateError):
        opened("llama", "q8_0", "q8_0").requantise(state, KVTypes("f16", "f16"))


@pytest.mark.parametrize("size", [64, 128, 256])
def test_the_rotation_is_the_orthonormal_hadamard_matrix_and_its_own_inverse(size: int) -> None:
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    matrix /= np.sqrt(size)
    values = np.random.default_rng(1).normal(size=7 * size).astype(np.float32)
    turned = hadamard_rotate(values, size)
    assert np.allclose(turned, (values.reshape(-1, size) @ matrix).ravel(), atol=1e-5)
    assert np.allclose(hadamard_rotate(turned, size), values, atol=1e-5)


def test_the_rotation_follows_llama_cpp_s_rule() -> None:
    def ruled(*dims: tuple[int, int]) -> tuple[Rotations, ...]:
        caches = [CacheHeads(k, v, False, False) for k, v in dims]
        return rotations(caches, is_k_quantised=False, is_v_quantised=False)

    assert ruled((64, 64)) == (Rotations(64, 64),)
    assert ruled((192, 128)) == (Rotations(64, 64),)
    assert ruled((512, 512), (256, 256)) == (Rotations(512, 64), Rotations(256, 64))
    assert ruled((80, 80)) == (Rotations(0, 0),)
    assert ruled((96, 64)) == (Rotations(0, 64),)
    assert ruled((-1, -1)) == (Rotations(0, 0),)
    with pytest.raises(StateError, match="heads of 80, 128 elements"):
        ruled((80, 80), (128, 80))
    does = [CacheHeads(80, 80, False, False), CacheHeads(128, 80, True, False)]
    assert rotations(does, is_k_quantised=True, is_v_quantised=True) == (
        Rotations(0, 0),
        Rotations(128, 0),
    )


def test_nothing_is_turned_where_llama_cpp_is_told_so(
    opened: OpenedTypes, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = opened("llama", "f16", "f16").state_format
    monkeypatch.setenv(requantisation.ROTATION_OFF, "1")
    exact = opened.state("llama", "f32", "f32")
    native = opened.state("llama", "q8_0", "q8_0")
    backend = opened("llama", "f32", "f32")
    made = backend.requantise(native, KVTypes("q8_0", "q8_0"))
    assert error(floats(made, 0, 0), floats(exact, 0, 0)) < ERRORS["q8_0"]
    assert backend.state_format != usual  # such states never meet turned ones
