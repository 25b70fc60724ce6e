"""Two distributions of the next token, row by row: KL divergence, likelihood, the same top.

With p the reference's probabilities and d its logits less the candidate's, both up to a constant,
KL(p || q) = sum p d + log sum p exp(-d). Written around the mean of d it loses no digits where the
two are nearly the same, which is where a log-sum-exp of each would cancel.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Logits
from engine.quality.records import QualityError

ROW = np.dtype(
    [("kl", "<f4"), ("nll", "<f4"), ("delta", "<f4"), ("same_top", "?"), ("is_right", "?")]
)
"""What is kept of a row: KL in nats; negative log-likelihood of the next token, and that less the
reference's; whether the reference has the same likeliest token; whether that is the next one."""
Rows = NDArray[np.void]

BLOCK_VALUES = 1 << 18
"""Logits that are computed with at once: 1 MiB, which a core's second cache holds."""
FAR_KL = 1.0
"""Nats from which a row is computed again with a log-sum-exp of each side in float64: far apart
distributions may leave float32, and nothing cancels."""


@dataclass(frozen=True, slots=True)
class ReferenceRows:
    """The reference's distributions of a batch."""

    logits: Logits
    """`[n, n_vocab]`; may be a view of the backend's memory."""
    probs: NDArray[np.float32]
    """`[n, n_vocab]`; `sums` to 1 but for rounding."""
    sums: NDArray[np.float64]
    top: NDArray[np.int64]
    next_tokens: NDArray[np.int64]
    """What the text goes on with, `[n]`."""
    nll: NDArray[np.float64]


def reference_rows(
    logits: Logits, next_tokens: Sequence[int], pool: Executor | None = None
) -> ReferenceRows:
    """The distributions of a batch, ready to be compared with.

    Args:
        logits: `[n, n_vocab]`, of which the first rows are taken, one for each next token.
        next_tokens: What the text goes on with.
        pool: Threads to share the work; None does it here.

    Raises:
        QualityError: a logit is no number.
    """
    n = len(next_tokens)
    tokens = np.asarray(next_tokens, dtype=np.int64)
    rows = ReferenceRows(
        logits[:n],
        np.empty((n, logits.shape[1]), dtype=np.float32),
        np.empty(n, dtype=np.float64),
        np.empty(n, dtype=np.int64),
        tokens,
        np.empty(n, dtype=np.float64),
    )

    def fill(block: slice) -> None:
        logits, probs = rows.logits[block], rows.probs[block]
        rows.top[block] = top = logits.argmax(axis=1)
        most = np.take_along_axis(logits, top[:, None], axis=1)
        with np.errstate(invalid="ignore"):
            np.exp(np.subtract(logits, most, out=probs), out=probs)
            sums = probs.sum(axis=1, keepdims=True)
            probs /= sums
        rows.sums[block] = probs.sum(axis=1)
        picked = np.take_along_axis(logits, rows.next_tokens[block][:, None], axis=1)
        rows.nll[block] = (np.log(sums.astype(np.float64)) + most - picked)[:, 0]

    _each_block(fill, n, logits.shape[1], pool)
    if not np.isfinite(rows.nll).all():
        raise QualityError("the reference's logits are no numbers: choose another reference type")
    return rows


def own_rows(reference: ReferenceRows) -> Rows:
    """What is kept of the reference's own rows."""
    rows = np.zeros(len(reference.nll), dtype=ROW)
    rows["nll"] = reference.nll
    rows["same_top"] = True
    rows["is_right"] = reference.top == reference.next_tokens
    return rows


def compared_rows(
    reference: ReferenceRows, logits: Logits, start: int = 0, pool: Executor | None = None
) -> Rows:
    """How far a candidate's rows are from the reference's.

    Args:
        reference: The reference's rows.
        logits: The candidate's, `[m, n_vocab]`, for the reference's rows from `start` on; more rows
            than there are left are not looked at.
        start: First row.
        pool: Threads to share the work; None does it here.

    Raises:
        QualityError: a logit is no number.
    """
    n = min(len(logits), len(reference.nll) - start)
    rows = np.zeros(n, dtype=ROW)

    def fill(block: slice) -> None:
        theirs = slice(block.start + start, block.stop + start)
        _compare(reference, theirs, logits[block], rows[block])

    _each_block(fill, n, logits.shape[1], pool)
    if not (np.isfinite(rows["kl"]).all() and np.isfinite(rows["delta"]).all()):
        raise QualityError("its logits are no numbers")
    return rows


def _compare(reference: ReferenceRows, theirs: slice, logits: Logits, rows: Rows) -> None:
    probs, next_tokens = reference.probs[theirs], reference.next_tokens[theirs]
    top = logits.argmax(axis=1)
    difference = reference.logits[theirs] - logits
    # A constant on all logits means nothing, and would take digits from the mean.
    difference -= np.take_along_axis(difference, reference.top[theirs][:, None], axis=1)
    picked = np.take_along_axis(difference, next_tokens[:, None], axis=1)[:, 0].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        weighted = probs * difference
        mean = weighted.sum(axis=1)  # numpy adds pairwise here, `einsum` one by one: 1e-5 off
        np.exp(np.subtract(mean[:, None], difference, out=difference), out=difference)
        shares = np.multiply(probs, difference, out=weighted).sum(axis=1).astype(np.float64)
        sums = reference.sums[theirs]
        mean = mean.astype(np.float64)
        log_shares = np.log(shares / sums)
        kl = mean / sums - mean + log_shares
        delta = picked - mean + log_shares
    for row in np.flatnonzero(~(kl < FAR_KL)):
        at = theirs.start + row
        kl[row], delta[row] = _far(reference.logits[at], logits[row], next_tokens[row])
    rows["kl"] = np.maximum(kl, 0.0)  # below 0 it is rounding
    rows["delta"] = delta
    rows["nll"] = reference.nll[theirs] + delta
    rows["same_top"] = top == reference.top[theirs]
    rows["is_right"] = top == next_tokens


def _far(first: Logits, second: Logits, token: int) -> tuple[float, float]:
    with np.errstate(invalid="ignore"):
        log_p, log_q = _log_softmax(first), _log_softmax(second)
        kl = float((np.exp(log_p) * (log_p - log_q)).sum())
    return kl, float(log_p[token] - log_q[token])


def _log_softmax(logits: Logits) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def _each_block(work: Callable[[slice], None], n: int, n_vocab: int, pool: Executor | None) -> None:
    """Do work on blocks of rows; numpy lets threads run side by side."""
    size = max(1, BLOCK_VALUES // n_vocab)
    blocks = [slice(start, min(start + size, n)) for start in range(0, n, size)]
    done: Iterable[None] = map(work, blocks) if pool is None else pool.map(work, blocks)
    for _ in done:
        pass
