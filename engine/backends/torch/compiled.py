"""The decode step in fixed shapes, as one compiled function: `torch.compile`, on CUDA a graph too.

A token behind a line has tensors of the same shapes each time where attention is given every row
of the cache and a mask says which are filled. So the whole step is compiled once, whatever the
line's length; on CUDA it is captured as a graph that is replayed without a call for each kernel.
Prompts, drafts and batches of several sequences have other shapes and go on as they were.

CUDA and `mps` were not at hand when this was written: there it is untried.
"""

from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor

from engine.backends.torch.caches.base import KVCache, KVState
from engine.backends.torch.caches.dense import DenseCache
from engine.backends.torch.model import Forward, Line, Rope, Transformer, TransformerBlock
from engine.clock import Stopwatch
from engine.configuration import CompileMode
from engine.errors import DecodeError

N_TRIALS = 8
"""Pairs of steps by which `auto` compares."""
MOST_TRIAL_S = 4.0
QUICKER = 0.97
"""Share of the plain step's time from which `auto` takes the compiled one."""
N_WARM = 3
"""Steps before a capture, in which libraries make what they make once."""


class FixedForward(Forward):
    """One token behind a line whose length lies on the device."""

    def __init__(
        self, caches: Sequence[DenseCache], position: Tensor, tables: dict[Rope, Tensor]
    ) -> None:
        """Nothing is asked of the device.

        Args:
            caches: Of the line.
            position: `[1]` int64, of the token.
            tables: The rotations at all positions.
        """
        self.lines = [Line(caches, n_tokens=1, n_rows=1)]
        self.spans, self.positions = [slice(0, 1)], [position]
        self._plan = None
        self._turns = {rope: table.index_select(0, position) for rope, table in tables.items()}
        self._seen: dict[int | None, Tensor] = {}

    def append(self, cache: KVCache, keys: Tensor, values: Tensor) -> KVState:
        assert isinstance(cache, DenseCache)
        return cache.put(keys, values, self.positions[0])

    def mask(self, index: int, held: KVState, window: int | None) -> Tensor:
        if window not in self._seen:  # every layer gives rows of all positions
            self._seen[window] = held.mask(self.positions[index], window)
        return self._seen[window]


class FixedStep:
    """The step behind the line of one sequence: the same tensors each time."""

    def __init__(
        self, model: Transformer, caches: Sequence[DenseCache], tables: dict[Rope, Tensor]
    ) -> None:
        self._model, self._caches, self._tables = model, caches, tables
        self._token = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
        self._position = torch.zeros(1, dtype=torch.int64, device=model.device)
        self._compiled = torch.compile(self.compute, dynamic=False)
        self._captured: tuple[torch.cuda.CUDAGraph, Tensor] | None = None

    def __call__(self, token: Tensor) -> Tensor:
        """The logits behind a token at the end of the line, valid until the next call."""
        self._model.check()
        self._token.copy_(token)
        self._position.fill_(self._caches[0].length)
        if self._model.device.type != "cuda":
            logits = self._compiled()
        else:
            self._captured = self._captured or self._capture()
            graph, logits = self._captured
            graph.replay()
        for cache in self._caches:
            cache.length += 1
        return logits

    def compute(self) -> Tensor:
        """The logits, by one operation after the other; the caches' lengths stay."""
        forward = FixedForward(self._caches, self._position, self._tables)
        return self._model.through(self._token, forward)

    def _capture(self) -> "tuple[torch.cuda.CUDAGraph, Tensor]":
        """The compiled step as a graph, and where its logits will lie."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(N_WARM):
                self._compiled()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._compiled()
        return graph, logits


class CompiledStep:
    """Decodes single tokens by compiled code while `is_on`.

    Such code has the number of threads in it: with another number steps are computed as usual, so
    that no reply waits for a compiler.
    """

    def __init__(self, model: Transformer, n_ctx: int) -> None:
        self._model = model
        positions = torch.arange(n_ctx, device=model.device)
        blocks = (block for block in model.blocks if isinstance(block, TransformerBlock))
        ropes = {block.attention.rope for block in blocks}
        self._tables = {rope: rope.turns(positions) for rope in ropes}
        self._steps: dict[int, FixedStep] = {}
        self._n_threads = 0
        self.is_on = False

    def take(self, token: Tensor, line: Line, number: int) -> Tensor | None:
        """The logits behind a token, `[1, 1, n_vocab]`; None where it is not compiled.

        Args:
            token: `[1, 1]` int64.
            line: That it belongs to.
            number: Of the line's sequence.
        """
        if not (self.is_on and line.n_rows and torch.get_num_threads() == self._n_threads):
            return None
        if number not in self._steps:
            caches = [each for each in line.caches if isinstance(each, DenseCache)]
            self._steps[number] = FixedStep(self._model, caches, self._tables)
        return self._steps[number](token)

    def begin(self, mode: CompileMode, decode: Callable[[], None]) -> str:
        """Compile, and stay so where that is asked for or takes less time.

        Args:
            mode: `on`, or `auto`.
            decode: Decodes one token behind an empty line.

        Returns:
            What came of it, for the user: where nothing can compile, steps are as they were.
        """
        watch = Stopwatch()
        try:
            self._compile(decode)
        except (RuntimeError, DecodeError) as error:
            self.is_on = False
            return f"the decode step is not compiled and goes on as it is: {_reason(error)}"
        took = f"which took {watch.total():.0f} s"
        if mode == "on":
            return f"the decode step is compiled, {took}"
        compiled_s, plain_s = self._times(decode)
        self.is_on = compiled_s < QUICKER * plain_s
        return (
            f"the decode step is {'compiled' if self.is_on else 'left as it is'}: "
            f"{1000 * compiled_s:.1f} ms compiled, {took}, and {1000 * plain_s:.1f} ms as it is"
        )

    def _compile(self, decode: Callable[[], None]) -> None:
        """Decode a token by compiled code, which torch keeps on disk for the next start."""
        if self._model.device.type == "cpu":
            from torch._inductor import config as inductor  # takes a second
            from torch._inductor import cpp_builder

            cpp_builder.get_cpp_compiler()
            inductor.compile_threads = 1  # in this process: none is left behind
        self._n_threads, self.is_on = torch.get_num_threads(), True
        decode()

    def _times(self, decode: Callable[[], None]) -> tuple[float, float]:
        """Median seconds of a step compiled and as it is, measured by turns."""
        taken: dict[bool, list[float]] = {True: [], False: []}
        whole = Stopwatch()
        while len(taken[False]) < N_TRIALS and (whole.total() < MOST_TRIAL_S or not taken[False]):
            for self.is_on in (True, False):
                watch = Stopwatch()
                decode()
                taken[self.is_on].append(watch.total())
        return median(taken[True]), median(taken[False])


def _reason(error: Exception) -> str:
    """What a compiler says itself, or that there is none."""
    if type(error).__name__ == "InvalidCxxCompiler":  # of a module that takes a second to import
        return "there is no C++ compiler (install g++ or clang, or name one by CXX)"
    cause = error.__cause__ or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[0] if lines else repr(cause))
