"""The torch backend beside llama.cpp, on the same file.

    python benchmarks/torch_backend.py logits MODEL [--positions 2000]
    python benchmarks/torch_backend.py compiled MODEL [--dtype f32] [--ctx 1024]
    python benchmarks/torch_backend.py bandwidth MODEL [--dtype bf16] [--ctx 1024]

`logits` compares distributions at every position of the texts that the laboratory has. MODEL, whose
weights torch dequantises, is held against llama.cpp on MODEL itself, where it rounds activations to
8 bits, and on a float32 file that its own quantiser makes of MODEL: the very same weights.
`compiled` decodes by turns with the compiled step and without, and prints the compile time.
`bandwidth` prints which share of the memory's bandwidth, as a copy of a gigabyte measures it, a
decode step reaches; on a GPU where torch finds one.
"""

import ctypes
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import click
import llama_cpp
import numpy as np
import torch
from numpy.typing import NDArray

from engine.backends.base import Backend
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.backends.torch.backend import TorchBackend
from engine.backends.torch.fixed_steps import Mode
from engine.clock import Stopwatch
from engine.configuration import Configuration
from engine.quality.metrics import compared_rows, reference_rows
from engine.quality.texts import own_texts

WINDOW = 512
"""Tokens of a text that are scored together."""
DEPTH = 100
"""Depths at which single tokens are decoded."""
ALL_F32 = 0
"""llama.cpp's `LLAMA_FTYPE_ALL_F32`."""
Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How near two distributions are, over all positions."""

    n_rows: int
    same_top: float
    mean_kl: float
    max_kl: float

    def __str__(self) -> str:
        return (
            f"{self.n_rows} positions, same top {self.same_top:.2%}, mean KL {self.mean_kl:.2e}, "
            f"largest {self.max_kl:.2e}"
        )


@click.group()
def command() -> None:
    """The torch backend, measured."""


@command.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True))
@click.option("--positions", default=2000, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--dtype", default="f32", show_default=True, help="Of torch's weights.")
def logits(model: Path, positions: int, threads: int, dtype: str) -> None:
    """Distributions on the same file, beside llama.cpp's."""
    log = NativeLog()
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / f"{model.stem}-f32.gguf"
        write_f32(model, whole)
        windows = token_windows(whole, positions, log)
        ours = torch_rows(model, windows, dtype, threads, log)
        exact = llama_rows(whole, windows, threads, log)
        theirs = llama_rows(model, windows, threads, log)
        print(f"torch beside llama.cpp in float32: {agreement(exact, ours, windows)}")
        print(f"torch beside llama.cpp on the file: {agreement(theirs, ours, windows)}")
        print(
            f"llama.cpp in float32 beside itself on the file: {agreement(theirs, exact, windows)}"
        )


@command.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True))
@click.option("--rounds", default=5, show_default=True)
@click.option("--tokens", default=64, show_default=True)
@click.option("--ctx", "sizes", multiple=True, default=(512, 2048), show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--dtype", "dtypes", multiple=True, default=("f32", "bf16", "f16"), show_default=True)
def compiled(
    model: Path, rounds: int, tokens: int, sizes: Sequence[int], threads: int, dtypes: Sequence[str]
) -> None:
    """A decode step compiled and as it is, by turns, at depth 100 in contexts of --ctx."""
    print("| dtype | context | compiling, s | compiled, tokens/s | as it is | ratio |")
    print("|---|--:|--:|--:|--:|--:|")
    for dtype in dtypes:
        for size in map(int, sizes):
            configuration = replace(
                _configuration(model, threads, "torch", dtype),
                n_ctx=size, type_k=dtype, type_v=dtype, compile="on",
            )  # fmt: skip
            backend, watch = TorchBackend(configuration, NativeLog()), Stopwatch()
            backend.warm_up()
            took = watch.total()
            seconds = steps_taken(backend, rounds, tokens)
            compiled_s, plain_s = seconds["compiled"], seconds["plain"]
            pairs = [one / other for one, other in zip(plain_s, compiled_s, strict=True)]
            print(
                f"| {dtype} | {size} | {took:.0f} | {1 / median(compiled_s):.1f} | "
                f"{1 / median(plain_s):.1f} | {median(pairs):.2f} "
                f"({min(pairs):.2f} to {max(pairs):.2f}) |",
                flush=True,
            )
            backend.close()


@command.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True))
@click.option("--rounds", default=5, show_default=True)
@click.option("--tokens", default=64, show_default=True)
@click.option("--ctx", default=512, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--dtype", "dtypes", multiple=True, default=("bf16",), show_default=True)
def bandwidth(
    model: Path, rounds: int, tokens: int, ctx: int, threads: int, dtypes: Sequence[str]
) -> None:
    """The bytes that a decode step must read, over its time, beside those of a copy."""
    for dtype in dtypes:
        configuration = replace(
            _configuration(model, threads, "torch", dtype),
            n_ctx=ctx, type_k=dtype, type_v=dtype, compile="on", n_gpu_layers=-1,
        )  # fmt: skip
        backend = TorchBackend(configuration, NativeLog())
        backend.warm_up()
        print(f"{dtype} on {backend.model.device}: {'; '.join(backend.notes)}")
        copied = copied_bytes_per_s(backend)
        print(f"a copy moves {copied / 1e9:.0f} GB/s", flush=True)
        print("| step | tokens/s | GB read a step | GB/s | of the copy's |")
        nbytes = read_bytes(backend, ctx)
        for way, taken in steps_taken(backend, rounds, tokens).items():
            seconds = median(taken)
            print(
                f"| {way} | {1 / seconds:.1f} | "
                f"{nbytes / 1e9:.3f} | {nbytes / seconds / 1e9:.0f} | "
                f"{nbytes / seconds / copied:.2f} |",
                flush=True,
            )
        backend.close()


def copied_bytes_per_s(backend: TorchBackend) -> float:
    """Bytes read and written a second by the fastest of ten copies of a gigabyte."""
    source = torch.ones(1 << 28, device=backend.model.device)
    target = torch.empty_like(source)
    best = math.inf
    for _ in range(10):
        settled(backend)
        watch = Stopwatch()
        target.copy_(source)
        settled(backend)
        best = min(best, watch.total())
    return 2 * source.nbytes / best


def read_bytes(backend: TorchBackend, n_ctx: int) -> int:
    """Bytes that a step cannot do without: all matrices once, and the cache's rows so far.

    Of embeddings one row is read, unless they are the output's matrix too.
    """
    model = backend.model
    is_tied = model.embeddings.data_ptr() == model.output.weight.data_ptr()
    weights = model.nbytes - (0 if is_tied else model.embeddings.nbytes)
    return weights + backend.kv_bytes * DEPTH // n_ctx


def settled(backend: TorchBackend) -> None:
    """Wait until the device has computed what it was given."""
    device = backend.model.device
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def steps_taken(backend: TorchBackend, rounds: int, tokens: int) -> dict[Mode, list[float]]:
    """Seconds of a step at depth 100 by each way, of several rounds by turns."""
    steps, sequence = backend.fixed, backend.open()
    if steps is None or steps.mode != "compiled":
        sys.exit(backend.notes[0])
    is_cuda = backend.model.device.type == "cuda"
    ways: tuple[Mode, ...] = ("plain", "captured", "compiled") if is_cuda else ("plain", "compiled")
    taken: dict[Mode, list[float]] = {mode: [] for mode in ways}
    sequence.prefill([5] * DEPTH)
    for number in range(rounds + 1):
        for steps.mode in ways:
            watch = Stopwatch()
            for _ in range(tokens):
                sequence.decode(5)
            sequence.crop(DEPTH)
            if number:  # the first warm all up
                taken[steps.mode].append(watch.total() / tokens)
    return taken


def write_f32(model: Path, path: Path) -> None:
    """MODEL with all tensors in float32, by llama.cpp's quantiser."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = ALL_F32
    params.allow_requantize = True
    code = llama_cpp.llama_model_quantize(
        str(model).encode(), str(path).encode(), ctypes.byref(params)
    )
    if code:
        raise click.ClickException(f"llama.cpp could not write {path}: code {code}")


def token_windows(model: Path, n_positions: int, log: NativeLog) -> list[list[int]]:
    """Windows of texts, each of at most `WINDOW` tokens, with this total of positions."""
    backend = LlamaCppBackend(Configuration(model, n_ctx=256), log)
    windows: list[list[int]] = []
    for text in own_texts():
        tokens = backend.vocabulary.tokenize(text.text, add_special=True, parse_special=False)
        for start in range(0, len(tokens), WINDOW):
            left = n_positions - sum(len(window) - 1 for window in windows)
            window = tokens[start : start + min(WINDOW, left + 1)]
            if len(window) > 1:
                windows.append(window)
    backend.close()
    return windows


def torch_rows(
    path: Path, windows: Sequence[list[int]], dtype: str, n_threads: int, log: NativeLog
) -> list[Rows]:
    """The logits after every token of each window."""
    backend = TorchBackend(_configuration(path, n_threads, "torch", dtype), log)
    rows = [_rows(backend, window) for window in windows]
    backend.close()
    return rows


def llama_rows(
    path: Path, windows: Sequence[list[int]], n_threads: int, log: NativeLog
) -> list[Rows]:
    """As `torch_rows`, by llama.cpp with float32 keys and values."""
    backend = LlamaCppBackend(_configuration(path, n_threads, "llama.cpp", "auto"), log)
    rows = [_rows(backend, window) for window in windows]
    backend.close()
    return rows


def agreement(
    theirs: Sequence[Rows], ours: Sequence[Rows], windows: Sequence[list[int]]
) -> Agreement:
    """KL(theirs || ours) and how often the likeliest token is the same."""
    rows = np.concatenate(
        [
            compared_rows(reference_rows(reference, window[1:]), own)
            for reference, own, window in zip(theirs, ours, windows, strict=True)
        ]
    )
    return Agreement(
        len(rows), float(rows["same_top"].mean()), float(rows["kl"].mean()), float(rows["kl"].max())
    )


def _configuration(path: Path, n_threads: int, backend: str, dtype: str) -> Configuration:
    return Configuration(
        path, n_ctx=WINDOW, n_batch=WINDOW, n_ubatch=WINDOW, n_threads=n_threads, type_k="f32",
        type_v="f32", flash_attention="off", n_gpu_layers=0, backend=backend, dtype=dtype,
    )  # type: ignore[arg-type]  # fmt: skip  # the names are those of the options


def _rows(backend: Backend, tokens: Sequence[int]) -> Rows:
    sequence = backend.open()
    parts = [
        sequence.verify(tokens[start : start + backend.n_rows]).logits.copy()
        for start in range(0, len(tokens), backend.n_rows)
    ]
    sequence.close()
    return np.concatenate(parts)


if __name__ == "__main__":
    command()
