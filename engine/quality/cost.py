"""Speed of a context with a cache type: prefill, and decoding at two depths."""

from collections.abc import Iterator, Sequence
from statistics import median

from engine.backends.base import Sequence as TokenSequence
from engine.clock import Stopwatch
from engine.configuration import KVTypes
from engine.quality.records import Cost
from engine.quality.scoring import BatchShape, Contestant

SHALLOW, DEEP = 256, 2048
"""Depths in tokens at which decoding is timed, less in a small context."""
N_BATCH = 512
N_DECODED = 6
"""Tokens of one timed run."""
N_ROUNDS = 5
"""Timed runs per cache type, interleaved so that slow moments of the machine affect all."""
MIN_CTX = 512
"""Smallest context in tokens that is timed."""


def depths(n_ctx: int) -> tuple[int, int]:
    """The shallow and the deep depth in a context of at least `MIN_CTX` tokens."""
    deep = min(DEEP, n_ctx - N_ROUNDS * N_DECODED)
    return min(SHALLOW, deep // 2), deep


def n_timed(n_ctx: int) -> int:
    """Tokens that each cache type decodes while it is timed."""
    return depths(n_ctx)[1] + N_ROUNDS * N_DECODED


def shape_of(n_ctx: int) -> BatchShape:
    """The batch shape of a chat: 512 tokens, one row of logits."""
    return BatchShape(n_ctx, min(N_BATCH, n_ctx), 1)


def time_contexts(
    rows: Sequence[Contestant], tokens: Sequence[int], n_ctx: int
) -> Iterator[tuple[KVTypes, Cost] | int]:
    """Yield the cost of each cache type, and before that the token count of each timed run.

    The counts show progress and let the caller stop between runs.

    Args:
        rows: Contexts of `shape_of(n_ctx)`.
        tokens: Tokens to decode, repeated if there are too few.
        n_ctx: Size of each context in tokens.

    Raises:
        EngineError: as `Sequence.prefill`.
    """
    shallow, deep = depths(n_ctx)
    rates: dict[KVTypes, list[float]] = {row.kind: [] for row in rows}
    prefill_s: dict[KVTypes, float] = {}
    for row in rows:
        row.sequence.prefill([_token(tokens, 0)])  # the first decode sets up the graph
        row.sequence.crop(0)
    for depth in (shallow, deep):
        for row in rows:
            prefill_s[row.kind] = 0.0
            for elapsed_s, n_read in _prefill(row, tokens, depth):
                prefill_s[row.kind] += elapsed_s
                yield n_read
        found: dict[KVTypes, list[float]] = {row.kind: [] for row in rows}
        for _ in range(N_ROUNDS):
            for row in rows:
                found[row.kind].append(_decode(row.sequence, tokens))
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
    """Prefill up to a depth; yield the seconds and the number of tokens of each batch.

    Each batch requests one row of logits: only reading it waits for a GPU.
    """
    while (n_held := len(row.sequence.tokens)) < depth:
        size = min(row.opened.backend.n_batch, depth - n_held)
        *unread, last = (_token(tokens, n_held + index) for index in range(size))
        watch = Stopwatch()
        row.sequence.verify((last,), unread=unread)
        yield watch.total(), size


def _decode(sequence: TokenSequence, tokens: Sequence[int]) -> float:
    watch = Stopwatch()
    for _ in range(N_DECODED):
        sequence.decode(_token(tokens, len(sequence.tokens)))
    return watch.total()


def _token(tokens: Sequence[int], at: int) -> int:
    return tokens[at % len(tokens)]
