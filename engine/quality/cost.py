"""How quick a context with a kind of cache is: prefill, and decoding at two depths."""

from collections.abc import Iterator, Sequence
from statistics import median

from engine.backends.base import Sequence as Line
from engine.clock import Stopwatch
from engine.configuration import KVTypes
from engine.quality.records import Cost
from engine.quality.scoring import BatchShape, Contestant

SHALLOW, DEEP = 256, 2048
"""Tokens in the cache while decoding is timed, as far as the context holds them."""
N_BATCH = 512
N_DECODED = 6
"""Tokens of one timed run."""
N_ROUNDS = 5
"""Runs of each kind, one kind after the other, so that all share the machine's slow moments."""
MIN_CTX = 512
"""Tokens of a context below which nothing is timed."""


def depths(n_ctx: int) -> tuple[int, int]:
    """Both depths in a context of at least `MIN_CTX` tokens."""
    deep = min(DEEP, n_ctx - N_ROUNDS * N_DECODED)
    return min(SHALLOW, deep // 2), deep


def n_timed(n_ctx: int) -> int:
    """Tokens that each kind decodes while it is timed."""
    return depths(n_ctx)[1] + N_ROUNDS * N_DECODED


def shape_of(n_ctx: int) -> BatchShape:
    """A context as a chat has it."""
    return BatchShape(n_ctx, min(N_BATCH, n_ctx), 1)


def time_kinds(
    rows: Sequence[Contestant], tokens: Sequence[int], n_ctx: int
) -> Iterator[tuple[KVTypes, Cost] | int]:
    """What each kind costs; between timed runs their tokens, so that the caller can stop.

    Args:
        rows: Contexts of `shape_of(n_ctx)`.
        tokens: What is decoded, over and over where they are few.
        n_ctx: Tokens of each context.

    Raises:
        EngineError: as `Sequence.prefill` does.
    """
    shallow, deep = depths(n_ctx)
    rates: dict[KVTypes, list[float]] = {row.kind: [] for row in rows}
    prefill_s: dict[KVTypes, float] = {}
    for row in rows:
        row.line.prefill([_token(tokens, 0)])  # the first decode of a context sets up its graph
        row.line.crop(0)
    for depth in (shallow, deep):
        for row in rows:
            prefill_s[row.kind] = 0.0
            for elapsed_s, n_read in _prefill(row, tokens, depth):
                prefill_s[row.kind] += elapsed_s
                yield n_read
        found: dict[KVTypes, list[float]] = {row.kind: [] for row in rows}
        for _ in range(N_ROUNDS):
            for row in rows:
                found[row.kind].append(_decode(row.line, tokens))
                yield N_DECODED
        for kind, seconds in found.items():
            rates[kind].append(N_DECODED / median(seconds))
    for row in rows:
        n_read = deep - shallow - N_ROUNDS * N_DECODED
        yield (
            row.kind,
            Cost(
                n_ctx=n_ctx,
                kv_bytes=row.opened.backend.kv_bytes,
                compute_bytes=row.opened.compute_bytes,
                prefill_tps=n_read / prefill_s[row.kind],
                shallow_depth=shallow,
                shallow_tps=rates[row.kind][0],
                deep_depth=deep,
                deep_tps=rates[row.kind][1],
            ),
        )


def _prefill(row: Contestant, tokens: Sequence[int], depth: int) -> Iterator[tuple[float, int]]:
    """Read up to a depth; the seconds and the tokens of each batch.

    A row of logits is asked for behind each batch, because a GPU is waited for with it only.
    """
    while (n_held := len(row.line.tokens)) < depth:
        size = min(row.opened.backend.n_batch, depth - n_held)
        *unread, last = (_token(tokens, n_held + index) for index in range(size))
        watch = Stopwatch()
        row.line.verify((last,), unread=unread)
        yield watch.total(), size


def _decode(line: Line, tokens: Sequence[int]) -> float:
    watch = Stopwatch()
    for _ in range(N_DECODED):
        line.decode(_token(tokens, len(line.tokens)))
    return watch.total()


def _token(tokens: Sequence[int], at: int) -> int:
    return tokens[at % len(tokens)]
