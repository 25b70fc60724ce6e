"""Decode steps in fixed shapes: compiled by `torch.compile`, on CUDA captured as graphs.

A few tokens after a line have tensors of the same shapes each time where attention is given a
fixed number of the cache's rows and a mask says which are filled. On CUDA such a step is captured
as a graph and replayed without a call for each of its kernels: for some tokens (a draft's too) and
a power of two of rows. Compiled is the step of one token, which reads all rows that there are.
Prompts and batches of several sequences have other shapes and go on as they were.

`mps` was not at hand when this was written: there it is untried.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from engine.backends.torch.caches.base import KVCache, KVState
from engine.backends.torch.caches.dense import DenseCache
from engine.backends.torch.model import ForwardPass, NewTokens, Rope, Transformer, TransformerBlock
from engine.clock import Stopwatch
from engine.configuration import MAX_DRAFT, CompileMode
from engine.errors import DecodeError

Way = Literal["plain", "captured", "compiled"]
MOST_TOKENS = MAX_DRAFT + 1
LEAST_ROWS = 256
MOST_STEPS = 64
"""Shapes whose graphs are kept; each takes some megabytes of the device."""
N_WARM = 3
"""Steps before a capture, in which libraries make what they make once."""


class FixedPass(ForwardPass):
    """Some tokens after a line whose length lies on the device."""

    def __init__(
        self,
        caches: Sequence[DenseCache],
        positions: Tensor,
        tables: dict[Rope, Tensor],
        n_rows: int,
    ) -> None:
        """Nothing is asked of the device.

        Args:
            caches: Of the line.
            positions: `[n_tokens]` int64
            tables: The rotations at all positions.
            n_rows: Of the cache, that attention is given.
        """
        n_tokens = positions.shape[0]
        self.new = NewTokens(caches, n_tokens=n_tokens, n_rows=n_tokens)
        self.positions = positions
        self._plan = None
        self._n_rows = n_rows
        self._turns = {rope: table.index_select(0, positions) for rope, table in tables.items()}
        self._seen: dict[int | None, Tensor] = {}

    def append(self, cache: KVCache, keys: Tensor, values: Tensor) -> KVState:
        assert isinstance(cache, DenseCache)
        return cache.put(keys, values, self.positions, self._n_rows)

    def mask(self, held: KVState, window: int | None) -> Tensor:
        if window not in self._seen:  # every layer gives rows of all positions
            self._seen[window] = held.mask(self.positions, window)
        return self._seen[window]


class StepShape(NamedTuple):
    """What a step is made for."""

    number: int
    """Of the sequence."""
    n_tokens: int
    n_rows: int
    """Of its cache, that attention is given."""
    is_compiled: bool


class FixedStep:
    """The step after the line of one sequence: the same tensors each time."""

    def __init__(
        self,
        model: Transformer,
        caches: Sequence[DenseCache],
        tables: dict[Rope, Tensor],
        shape: StepShape,
    ) -> None:
        device = model.device
        self._model, self._caches, self._tables = model, caches, tables
        self._n_rows = shape.n_rows
        self._tokens = torch.zeros((1, shape.n_tokens), dtype=torch.int64, device=device)
        self._offsets = torch.arange(shape.n_tokens, device=device)
        self._positions = torch.zeros_like(self._offsets)
        self._run: Callable[[], Tensor] = self.compute
        if shape.is_compiled:
            # Single rows times matrices become kernels of their own, which tuning makes quicker
            # than the libraries' on CUDA.
            tuned = device.type == "cuda"
            self._run = torch.compile(
                self.compute, dynamic=False, options={"coordinate_descent_tuning": tuned}
            )
        self._captured: tuple[torch.cuda.CUDAGraph, Tensor] | None = None

    def __call__(self, tokens: Tensor) -> Tensor:
        """The logits after tokens at the end of the line, valid until the next step."""
        self._model.check()
        self._tokens.copy_(tokens)
        torch.add(self._offsets, self._caches[0].length, out=self._positions)
        if self._model.device.type != "cuda":
            logits = self._run()
        else:
            self._captured = self._captured or self._capture()
            graph, logits = self._captured
            graph.replay()
        for cache in self._caches:
            cache.length += tokens.shape[1]
        return logits

    def compute(self) -> Tensor:
        """The logits, by one operation after the other; the caches' lengths stay."""
        forward = FixedPass(self._caches, self._positions, self._tables, self._n_rows)
        return self._model.through(self._tokens, forward)

    def _capture(self) -> "tuple[torch.cuda.CUDAGraph, Tensor]":
        """The step as a graph, and where its logits will lie."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(N_WARM):
                self._run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._run()
        return graph, logits


class FixedSteps:
    """Decodes in fixed shapes, by the `way` that is chosen.

    Compiled code for a processor has the number of threads in it: with another number steps are
    computed as usual, so that no reply waits for a compiler.
    """

    def __init__(self, model: Transformer, n_ctx: int) -> None:
        self._model, self._n_ctx = model, n_ctx
        positions = torch.arange(n_ctx, device=model.device)
        blocks = (block for block in model.blocks if isinstance(block, TransformerBlock))
        ropes = {block.attention.rope for block in blocks}
        self._tables = {rope: rope.turns(positions) for rope in ropes}
        self._steps: dict[StepShape, FixedStep] = {}
        self._n_threads = 0
        self._usual: Way = "plain"
        """Of steps that are not compiled."""
        self.way: Way = "plain"

    def take(self, tokens: Tensor, line: NewTokens, number: int) -> Tensor | None:
        """The logits after tokens, `[1, n, n_vocab]`; None where their shape is not fixed.

        Args:
            tokens: `[1, n]` int64.
            line: That they belong to.
            number: Of the line's sequence.
        """
        shape = self._shape(line, number)
        if shape is None:
            return None
        step = self._steps.pop(shape, None)
        if step is None:
            caches = [each for each in line.caches if isinstance(each, DenseCache)]
            step = FixedStep(self._model, caches, self._tables, shape)
        self._steps[shape] = step  # the last one taken stands last
        if len(self._steps) > MOST_STEPS:
            del self._steps[next(iter(self._steps))]
        return step(tokens)

    def _shape(self, line: NewTokens, number: int) -> StepShape | None:
        n_tokens = line.n_tokens
        if self.way == "plain" or line.n_rows != n_tokens or n_tokens > MOST_TOKENS:
            return None
        if self.way == "compiled" and n_tokens == 1:
            if torch.get_num_threads() != self._n_threads:
                return None
            return StepShape(number, 1, self._n_ctx, is_compiled=True)
        if self._usual == "plain":
            return None
        n_held = line.caches[0].length + n_tokens
        n_rows = min(self._n_ctx, max(LEAST_ROWS, 1 << (n_held - 1).bit_length()))
        return StepShape(number, n_tokens, n_rows, is_compiled=False)

    def begin(self, mode: CompileMode, decode: Callable[[], None]) -> tuple[str, ...]:
        """Capture on CUDA, and compile where that is asked for.

        Args:
            mode: `off`, `on`, or `auto`, which compiles on CUDA: on a processor compiled code took
                more time in four of six measurements (docs/torch.md).
            decode: Decodes one token after an empty line.

        Returns:
            What came of each, for the user, nothing of what went well unasked: where nothing can
            compile or capture, steps are as they were.
        """
        notes: list[str] = []
        is_cuda = self._model.device.type == "cuda"
        if is_cuda and (fault := self._tried("captured", decode)):
            notes.append(
                f"decode steps run without a CUDA graph, because capturing one failed: {fault}"
            )
        if mode == "on" or (mode == "auto" and is_cuda):
            notes.append(self._compiled(decode))
        elif mode == "auto":
            notes.append("the decode step is not compiled: auto compiles on CUDA only")
        return tuple(notes)

    def _compiled(self, decode: Callable[[], None]) -> str:
        """What came of compiling the step."""

        def decode_by_compiled_code() -> None:
            self._prepare_compiler()
            decode()

        watch = Stopwatch()
        fault = self._tried("compiled", decode_by_compiled_code)
        if fault:
            return f"the decode step is not compiled: {fault}"
        return f"the decode step is compiled, which took {watch.total():.0f} s"

    def _tried(self, way: Way, decode: Callable[[], None]) -> str:
        """Take a way from now on, and give the fault where it fails, else nothing."""
        before = self._usual
        self.way = way
        if way == "captured":
            self._usual = way
        try:
            decode()
        except (RuntimeError, DecodeError) as error:
            self.way = self._usual = before
            return _reason(error)
        return ""

    def _prepare_compiler(self) -> None:
        """Code that was compiled once is kept on disk by torch, for the next start."""
        self._n_threads = torch.get_num_threads()
        if self._model.device.type == "cpu":
            from torch._inductor import config as inductor  # takes a second
            from torch._inductor import cpp_builder

            cpp_builder.get_cpp_compiler()
            inductor.compile_threads = 1  # in this process: none is left behind


def _reason(error: Exception) -> str:
    """What a compiler says itself, or that there is none."""
    if type(error).__name__ == "InvalidCxxCompiler":  # of a module that takes a second to import
        return "no C++ compiler was found (install g++ or clang, or set CXX)"
    cause = error.__cause__ or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[0] if lines else repr(cause))
