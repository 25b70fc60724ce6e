"""Speed of a context with a cache type: prefill, and decoding at two depths."""

from collections.abc import Iterator, Sequence
from statistics import median

from engine.clock import Stopwatch
from engine.configuration import KVTypes
from engine.quality.records import Cost
from engine.quality.scoring import BatchShape, OpenedContext

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
    contexts: Sequence[OpenedContext], tokens: Sequence[int], n_ctx: int
) -> Iterator[tuple[KVTypes, Cost] | int]:
    """Yield the cost of each cache type, and before that the token count of each timed run.

    The counts show progress and let the caller stop between runs.

    Args:
        contexts: Contexts of `shape_of(n_ctx)`.
        tokens: Tokens to decode, repeated if there are too few.
        n_ctx: Size of each context in tokens.

    Raises:
        EngineError: as `Sequence.prefill`.
    """
    shallow, deep = depths(n_ctx)
    rates: dict[KVTypes, list[float]] = {each.kind: [] for each in contexts}
    prefill_s: dict[KVTypes, float] = {}
    for each in contexts:
        each.sequence.prefill([tokens[0]])  # the first decode sets up the graph
        each.sequence.crop(0)
    for depth in (shallow, deep):
        for each in contexts:
            prefill_s[each.kind] = 0.0
            for elapsed_s, n_read in _prefill(each, tokens, depth):
                prefill_s[each.kind] += elapsed_s
                yield n_read
        found: dict[KVTypes, list[float]] = {each.kind: [] for each in contexts}
        for _ in range(N_ROUNDS):
            for each in contexts:
                sequence, watch = each.sequence, Stopwatch()
                for _ in range(N_DECODED):
                    sequence.decode(tokens[len(sequence.tokens) % len(tokens)])
                found[each.kind].append(watch.total())
                yield N_DECODED
        for kind, seconds in found.items():
            rates[kind].append(N_DECODED / median(seconds))
    n_read = deep - shallow - N_ROUNDS * N_DECODED
    for each in contexts:
        shallow_tps, deep_tps = rates[each.kind]
        yield (
            each.kind,
            Cost(
                n_ctx=n_ctx,
                kv_bytes=each.backend.kv_bytes,
                compute_bytes=each.compute_bytes,
                prefill_tps=n_read / prefill_s[each.kind],
                shallow_depth=shallow,
                shallow_tps=shallow_tps,
                deep_depth=deep,
                deep_tps=deep_tps,
            ),
        )


def _prefill(
    context: OpenedContext, tokens: Sequence[int], depth: int
) -> Iterator[tuple[float, int]]:
    """Prefill up to a depth; yield the seconds and the number of tokens of each batch.

    Each batch requests one row of logits: only reading it waits for a GPU.
    """
    while (n_held := len(context.sequence.tokens)) < depth:
        end = min(n_held + context.backend.n_batch, depth)
        *unread, last = (tokens[at % len(tokens)] for at in range(n_held, end))
        watch = Stopwatch()
        context.sequence.verify((last,), unread=unread)
        yield watch.total(), end - n_held
