"""Decode steps with fixed tensor shapes: compiled by `torch.compile`, on CUDA captured as graphs.

Attention reads a fixed number of cache rows and a mask hides the unfilled ones, so that a step of
some tokens has the same shapes each time. A graph is captured for each number of tokens up to a
draft's and each power of two of rows. The compiled step decodes one token and reads all rows.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from engine.backends.torch.caches.base import KVCache, KVState, LayerCache
from engine.backends.torch.caches.dense import DenseCache
from engine.backends.torch.model import ForwardPass, Rope, Transformer, TransformerBlock
from engine.clock import Stopwatch
from engine.configuration import MAX_DRAFT, CompileMode
from engine.errors import DecodeError

Mode = Literal["plain", "captured", "compiled"]
MIN_ROWS = 256
MAX_STEPS = 64
"""Shapes whose graphs are cached; each takes some megabytes of the device."""
N_WARM = 3
"""Steps before a capture, which set up libraries."""
Step = Callable[[Tensor], Tensor]
"""Tokens to logits, which are valid until the next call."""
StepShape = tuple[int, int, int, bool]
"""Sequence, tokens and cache rows of a step, and whether it is compiled."""


class FixedPass(ForwardPass):
    """A forward pass in which the length decides values of tensors but no shapes."""

    def __init__(
        self,
        caches: Sequence[DenseCache],
        positions: Tensor,
        tables: dict[Rope, Tensor],
        n_cached: int,
    ) -> None:
        self.caches, self.positions, self.n_rows = caches, positions, positions.shape[0]
        self._plan, self._n_cached = None, n_cached
        self._cos_sin = {rope: table.index_select(0, positions) for rope, table in tables.items()}
        self._seen: dict[int | None, Tensor] = {}

    def append(self, cache: KVCache, keys: Tensor, values: Tensor) -> KVState:
        assert isinstance(cache, DenseCache)
        return cache.put(keys, values, self.positions, self._n_cached)

    def mask(self, held: KVState, window: int | None) -> Tensor:
        if window not in self._seen:
            self._seen[window] = held.mask(self.positions, window)
        return self._seen[window]


class FixedSteps:
    """Decodes steps by the current `mode`; compiled code is valid for one number of threads."""

    def __init__(self, model: Transformer, n_ctx: int) -> None:
        self._model, self._n_ctx = model, n_ctx
        positions = torch.arange(n_ctx, device=model.device)
        blocks = (block for block in model.blocks if isinstance(block, TransformerBlock))
        ropes = {block.attention.rope for block in blocks}
        self._tables = {rope: rope.cos_sin(positions) for rope in ropes}
        self._steps: dict[StepShape, Step] = {}
        self._n_threads = 0
        self.mode: Mode = "plain"

    def decode(self, tokens: Tensor, caches: Sequence[LayerCache], sequence: int) -> Tensor | None:
        """Logits `[1, n, n_vocab]` of tokens `[1, n]`; None if this step has no fixed shape."""
        shape = self._shape(tokens.shape[1], caches[0].length, sequence)
        if shape is None:
            return None
        dense = [each for each in caches if isinstance(each, DenseCache)]
        step = self._steps.pop(shape, None) or self._step(shape, dense, tokens)
        self._steps[shape] = step  # the least recently used one comes first
        if len(self._steps) > MAX_STEPS:
            del self._steps[next(iter(self._steps))]
        return step(tokens)

    def _shape(self, n_tokens: int, length: int, sequence: int) -> StepShape | None:
        if self.mode == "plain" or n_tokens > 1 + MAX_DRAFT:
            return None
        if self.mode == "compiled" and n_tokens == 1:
            is_valid = torch.get_num_threads() == self._n_threads
            return (sequence, 1, self._n_ctx, True) if is_valid else None
        if self._model.device.type != "cuda":
            return None
        n_cached = max(MIN_ROWS, 1 << (length + n_tokens - 1).bit_length())
        return sequence, n_tokens, min(self._n_ctx, n_cached), False

    def _step(self, shape: StepShape, caches: Sequence[DenseCache], tokens: Tensor) -> Step:
        _, n_tokens, n_cached, is_compiled = shape
        model, ids = self._model, tokens.clone()
        offsets = torch.arange(n_tokens, device=model.device)
        positions = offsets + caches[0].length

        def forward() -> Tensor:
            return model.forward(ids, FixedPass(caches, positions, self._tables, n_cached))

        is_cuda, compute = model.device.type == "cuda", forward
        if is_compiled:
            compute = torch.compile(
                forward, dynamic=False, options={"coordinate_descent_tuning": is_cuda}
            )
        if is_cuda:
            compute = _captured(compute)

        def step(tokens: Tensor) -> Tensor:
            model.check()
            ids.copy_(tokens)
            torch.add(offsets, caches[0].length, out=positions)
            logits = compute()
            for cache in caches:
                cache.length += n_tokens
            return logits

        return step

    def begin(self, mode: CompileMode, decode: Callable[[], None]) -> tuple[str, ...]:
        """Capture on CUDA, and compile if requested; steps stay plain if that fails.

        `auto` compiles on CUDA only: on CPUs compiled code took more time in four of six
        measurements. `decode` decodes one token in an empty sequence. Returns notes for the user.
        """
        is_cuda, watch = self._model.device.type == "cuda", Stopwatch()
        if is_cuda and (fault := self._fault_of("captured", decode)):
            return (f"decode steps run without a CUDA graph, because capturing failed: {fault}",)
        if mode == "off":
            return ()
        if mode == "auto" and not is_cuda:
            return ("the decode step is not compiled: compile=auto compiles only on CUDA",)
        if fault := self._fault_of("compiled", decode):
            return (f"the decode step is not compiled: {fault}",)
        return (f"the decode step is compiled, which took {watch.total():.0f} s",)

    def _fault_of(self, mode: Mode, decode: Callable[[], None]) -> str:
        """Switch to a mode and decode once; the error text, or empty on success."""
        before, self.mode = self.mode, mode
        try:
            if mode == "compiled":
                self._n_threads = torch.get_num_threads()
                if self._model.device.type == "cpu":
                    _prepare_compiler()
            decode()
        except (RuntimeError, DecodeError) as error:
            self.mode = before
            return _reason(error)
        return ""


def _captured(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(N_WARM):
            compute()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        logits = compute()

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay


def _prepare_compiler() -> None:
    from torch._inductor import config as inductor  # takes a second
    from torch._inductor import cpp_builder

    cpp_builder.get_cpp_compiler()
    inductor.compile_threads = 1  # leaves no child process


def _reason(error: Exception) -> str:
    if type(error).__name__ == "InvalidCxxCompiler":  # its module takes a second to import
        return "no C++ compiler was found (install g++ or clang, or set CXX)"
    cause = error.__cause__ or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[0] if lines else repr(cause))
