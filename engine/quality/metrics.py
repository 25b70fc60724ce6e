"""Compare two distributions of the next token row by row: KL divergence, likelihood, same top.

With p the reference's probabilities, d its logits minus the candidate's and m = sum p d,
KL(p || q) = log sum p exp(m - d). Centred on m it loses no digits for nearly equal distributions,
for which the difference of two log-sum-exps cancels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Logits
from engine.quality.records import QualityError

ROW = np.dtype(
    [("kl", "<f4"), ("nll", "<f4"), ("delta", "<f4"), ("same_top", "?"), ("is_right", "?")]
)
"""Figures of one row: KL in nats; negative log-likelihood of the next token, and its difference to
the reference's; whether the top token is the reference's; whether it is the next token."""
Rows = NDArray[np.void]

BLOCK_VALUES = 1 << 18
"""Logits per block: 1 MiB, which fits into the L2 cache."""
FAR_KL = 1.0
"""Nats above which a row is recomputed with a log-sum-exp of each side in float64: distributions
this far apart may overflow float32, and nothing cancels."""


@dataclass(frozen=True, slots=True)
class ReferenceRows:
    """The reference's distributions of a batch."""

    logits: Logits
    """`[n, n_vocab]`, possibly a view of the backend's memory."""
    weights: NDArray[np.float32]
    """`[n, n_vocab]`: probabilities times `sums`, 1 for the top token."""
    sums: NDArray[np.float64]
    top: NDArray[np.int64]
    next_tokens: NDArray[np.int64]
    """Next tokens of the text, `[n]`."""
    nll: NDArray[np.float64]


def reference_rows(logits: Logits, next_tokens: Sequence[int]) -> ReferenceRows:
    """Compute the reference's distributions of a batch.

    Args:
        logits: `[m, n_vocab]` with m >= n; only the first n rows are used.
        next_tokens: The n next tokens of the text.

    Raises:
        QualityError: a logit is NaN or infinite.
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
    for block in _blocks(n, logits.shape[1]):
        found, weights = rows.logits[block], rows.weights[block]
        rows.top[block] = top = found.argmax(axis=1)
        most = np.take_along_axis(found, top[:, None], axis=1)
        with np.errstate(invalid="ignore"):
            np.exp(np.subtract(found, most, out=weights), out=weights)
        rows.sums[block] = weights.sum(axis=1)
        picked = np.take_along_axis(found, rows.next_tokens[block][:, None], axis=1)
        rows.nll[block] = np.log(rows.sums[block]) + (most - picked)[:, 0]
    if not np.isfinite(rows.nll).all():
        raise QualityError(
            "the logits of the reference contain NaN or infinity: choose another reference type"
        )
    return rows


def own_rows(reference: ReferenceRows) -> Rows:
    """Figures of the reference itself: KL and difference are 0."""
    rows = np.zeros(len(reference.nll), dtype=ROW)
    rows["nll"] = reference.nll
    rows["same_top"] = True
    rows["is_right"] = reference.top == reference.next_tokens
    return rows


def compared_rows(reference: ReferenceRows, logits: Logits, start: int = 0) -> Rows:
    """Figures of a candidate's rows compared with the reference's.

    Args:
        reference: The reference's rows.
        logits: The candidate's, `[m, n_vocab]`, for the reference's rows from `start` on; surplus
            rows are ignored.
        start: Index of the first row.

    Raises:
        QualityError: a logit is NaN or infinite.
    """
    n = min(len(logits), len(reference.nll) - start)
    rows = np.zeros(n, dtype=ROW)
    for block in _blocks(n, logits.shape[1]):
        theirs = slice(block.start + start, block.stop + start)
        _compare(reference, theirs, logits[block], rows[block])
    if not (np.isfinite(rows["kl"]).all() and np.isfinite(rows["delta"]).all()):
        raise QualityError("its logits contain NaN or infinity")
    return rows


def _compare(reference: ReferenceRows, theirs: slice, logits: Logits, rows: Rows) -> None:
    weights, next_tokens = reference.weights[theirs], reference.next_tokens[theirs]
    top = logits.argmax(axis=1)
    difference = reference.logits[theirs] - logits
    # A constant offset of all logits has no effect, but would cost digits of the mean.
    difference -= np.take_along_axis(difference, reference.top[theirs][:, None], axis=1)
    picked = np.take_along_axis(difference, next_tokens[:, None], axis=1)[:, 0].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        sums = reference.sums[theirs]
        weighted = weights * difference
        # `sum` adds pairwise; `einsum` adds sequentially, which is off by 1e-5
        mean = (weighted.sum(axis=1) / sums).astype(np.float32)
        np.exp(np.subtract(mean[:, None], difference, out=difference), out=difference)
        shares = np.multiply(weights, difference, out=weighted).sum(axis=1)
        kl = np.log(shares / sums)
        delta = picked - mean + kl
    for row in np.flatnonzero(~(kl < FAR_KL)):
        at = theirs.start + row
        with np.errstate(invalid="ignore"):
            log_p, log_q = _log_softmax(reference.logits[at]), _log_softmax(logits[row])
            kl[row] = (np.exp(log_p) * (log_p - log_q)).sum()
            delta[row] = (log_p - log_q)[next_tokens[row]]
    rows["kl"] = np.maximum(kl, 0.0)  # negative values are rounding errors
    rows["delta"] = delta
    rows["nll"] = reference.nll[theirs] + delta
    rows["same_top"] = top == reference.top[theirs]
    rows["is_right"] = top == next_tokens


def _log_softmax(logits: Logits) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def _blocks(n: int, n_vocab: int) -> Iterator[slice]:
    """The rows in blocks of at most `BLOCK_VALUES` logits, or of one row."""
    size = max(1, BLOCK_VALUES // n_vocab)
    return (slice(start, min(start + size, n)) for start in range(0, n, size))
