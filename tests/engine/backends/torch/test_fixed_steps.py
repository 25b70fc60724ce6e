"""The decode step in fixed shapes: its logits, and the fallback without a compiler."""

import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gguf")

from engine.backends.llama_cpp.log import NativeLog  # noqa: E402
from engine.backends.torch.backend import TorchBackend  # noqa: E402
from engine.backends.torch.fixed_steps import FixedSteps  # noqa: E402
from engine.backends.torch.model import rotate  # noqa: E402
from engine.errors import ModelLoadError  # noqa: E402
from tests.engine.backends.torch_models import settings  # noqa: E402
from tests.support.filled_models import filled_model  # noqa: E402
from tests.support.torch_device import DEVICE  # noqa: E402

LINE = [int(each) for each in np.random.default_rng(1).integers(3, 259, 120)]


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same functions, called as they are: compiling them takes half a minute."""
    if DEVICE.type == "cuda":
        pytest.skip("steps are graphs there, and have a test of their own")
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


def tried(path: Path, log: NativeLog, **changes: object) -> TorchBackend:
    backend = TorchBackend(settings(path, compile="on", **changes), log)
    backend.warm_up()
    return backend


def step_of(backend: TorchBackend) -> FixedSteps:
    step = backend.fixed
    assert step is not None
    return step


def test_rotations_are_the_same_in_a_compiled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    heads, angles = torch.randn(1, 3, 2, 8), torch.rand(3, 1, 4)
    cos_sin = torch.stack((angles.cos(), angles.sin()), -1)
    expected = rotate(heads, cos_sin)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.allclose(rotate(heads, cos_sin), expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_a_step_of_fixed_shapes_gives_the_logits_of_any_other(
    tmp_path: Path, log: NativeLog, architecture: str, kind: str
) -> None:
    path = filled_model(tmp_path / "model.gguf", architecture)
    backend = tried(path, log, kv_cache=kind, swa_full=True, n_slots=2)
    step = step_of(backend)
    first, second = backend.open(), backend.open()
    for sequence in (first, second):
        sequence.prefill(LINE[:50])
    found = []
    for step.mode in ("compiled", "plain"):
        rows = [first.decode(token).logits.copy() for token in LINE[50:90]]
        first.crop(60)
        rows += [first.verify(LINE[60:64]).logits.copy(), first.decode(7).logits.copy()]
        rows.append(second.decode(LINE[50]).logits.copy())
        assert list(first.tokens) == [*LINE[:64], 7]
        first.crop(50)
        second.crop(50)
        found.append(np.concatenate(rows))
    assert np.abs(found[0] - found[1]).max() < 1e-4 * np.abs(found[0]).max()
    backend.close()


@pytest.mark.skipif(DEVICE.type != "cuda", reason="graphs are CUDA's: KVCHAT_TEST_DEVICE=cuda")
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_steps_captured_as_graphs_give_the_logits_of_any_other(
    tmp_path: Path, log: NativeLog, architecture: str, kind: str
) -> None:
    path = filled_model(tmp_path / "model.gguf", architecture)
    backend = TorchBackend(settings(path, n_ctx=600, kv_cache=kind, swa_full=True, n_slots=2), log)
    backend.warm_up()
    steps = step_of(backend)
    assert steps.mode == "captured"
    first, second = backend.open(), backend.open()
    for sequence in (first, second):
        sequence.prefill(LINE[:50])
    found = []
    for steps.mode in ("captured", "plain"):
        rows, at = [], 50
        for n_tokens in (1, 5, 2, 17, 1, 3, 17, 17, 17) * 3:  # past 128 and 256 rows
            tokens = [LINE[each % len(LINE)] for each in range(at, at + n_tokens)]
            rows.append(first.verify(tokens).logits.copy())
            at += n_tokens
        first.crop(60)
        rows += [first.verify(LINE[60:64]).logits.copy(), second.decode(7).logits.copy()]
        assert list(first.tokens) == LINE[:64]
        first.crop(50)
        second.crop(50)
        found.append(np.concatenate(rows))
    assert np.abs(found[0] - found[1]).max() < 1e-3 * np.abs(found[0]).max()
    backend.close()


@pytest.mark.skipif(DEVICE.type == "cuda", reason="auto compiles there")
def test_auto_compiles_nothing_on_a_cpu_and_notes_it(llama: Path, log: NativeLog) -> None:
    backend = TorchBackend(settings(llama, compile="auto"), log)
    backend.warm_up()
    assert step_of(backend).mode == "plain"
    assert len(backend.notes) == 1
    backend.close()


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a processor's compiler")
@pytest.mark.slow
def test_without_a_compiler_it_decodes_and_notes_it(llama: Path, log: NativeLog) -> None:
    from torch._inductor import config

    with config.patch({"cpp.cxx": ("no-such-compiler",)}):
        backend = tried(llama, log)
    assert step_of(backend).mode == "plain"
    [note] = backend.notes
    assert "g++" in note
    assert backend.open().decode(5).logits.shape == (1, 259)
    backend.close()


@pytest.mark.parametrize("change", [{"kv_cache": "q4_0"}, {"kv_cache": "paged"},
                                    {"decode_plan": "128"}])  # fmt: skip
def test_what_has_no_fixed_shapes_is_refused_and_left_alone_by_auto(
    llama: Path, log: NativeLog, change: dict[str, object]
) -> None:
    with pytest.raises(ModelLoadError, match="f32"):
        TorchBackend(settings(llama, compile="on", **change), log)
    backend = TorchBackend(settings(llama, compile="auto", **change), log)
    backend.warm_up()
    assert "cannot be compiled" in backend.notes[0]
    backend.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of torch.jit
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler was found")
def test_compiled_code_gives_the_logits_of_the_model(llama: Path, log: NativeLog) -> None:
    backend = tried(llama, log)
    assert "is compiled" in backend.notes[0]
    sequence, step, found = backend.open(), step_of(backend), []
    for step.mode in ("compiled", "plain"):
        found.append(np.concatenate([sequence.decode(each).logits.copy() for each in LINE[:40]]))
        sequence.crop(0)
    assert np.abs(found[0] - found[1]).max() < 1e-4 * np.abs(found[0]).max()
    backend.close()
