"""Damaged headers, beside what ggml makes of them."""

import ctypes
import importlib.util
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.errors import ModelFileError
from engine.model.gguf import read_gguf
from tests.support.fuzzed_headers import Case, damaged, outcome, small_seeds


def test_undamaged_headers_are_all_estimated() -> None:
    outcomes = {outcome(Case(s.name, "none", s.data, s.nbytes)) for s in small_seeds()}
    assert outcomes == {"estimated"}


class _Options(ctypes.Structure):
    """ggml's `gguf_init_params`."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def test_what_ggml_refuses_is_refused_and_nothing_else(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("llama_cpp")
    assert spec is not None
    folder = Path(str(spec.origin)).parent / "lib"
    ggml = ctypes.CDLL(str(next(folder.glob("libggml-base.so*"))))
    with _quiet(ggml):
        agreed = _agreed(ggml, tmp_path / "case.gguf")
    assert len(agreed) == 2
    assert min(agreed.values()) > 50


@contextmanager
def _quiet(ggml: ctypes.CDLL) -> Iterator[None]:
    """Take ggml's messages away: llama-cpp-python's own callback fails at names of noise."""
    before, data = ctypes.c_void_p(), ctypes.c_void_p()
    ggml.ggml_log_get(ctypes.byref(before), ctypes.byref(data))
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    nothing = kind(lambda *_: None)
    ggml.ggml_log_set(nothing, None)
    try:
        yield
    finally:
        ggml.ggml_log_set(before, data)


def _agreed(ggml: ctypes.CDLL, path: Path) -> Counter[bool]:
    """Read damaged headers by both, and count those that both read and both refuse."""
    ggml.gguf_init_from_file.argtypes = [ctypes.c_char_p, _Options]
    ggml.gguf_init_from_file.restype = ctypes.c_void_p
    ggml.gguf_free.argtypes = [ctypes.c_void_p]
    agreed: Counter[bool] = Counter()
    for case in damaged(small_seeds(["smollm2-135m"]), 400, random_seed=3):
        if case.nbytes > 1 << 30:
            continue  # ggml reads through holes of any size
        path.write_bytes(case.data)
        with path.open("r+b") as file:
            file.truncate(case.nbytes)
        opened = ggml.gguf_init_from_file(str(path).encode(), _Options(no_alloc=True))
        if opened:
            ggml.gguf_free(opened)
        refusal = _refusal(path)
        # llama.cpp finds data that are missing later, when it loads them.
        if "is truncated: tensor" not in refusal:
            assert bool(refusal) is not bool(opened), (
                f"{case.damage}: {refusal or 'read here only'}"
            )
            agreed[not refusal] += 1
    return agreed


def _refusal(path: Path) -> str:
    try:
        read_gguf(path)
    except ModelFileError as error:
        return str(error)
    return ""
