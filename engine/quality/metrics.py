"""Two distributions of the next token, row by row: KL divergence, likelihood, the same top.

With p the reference's probabilities, d its logits less the candidate's and m = sum p d,
KL(p || q) = log sum p exp(m - d). Around the mean m it loses no digits where the two are nearly the
same, which is where a log-sum-exp of each would cancel.
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
    weights: NDArray[np.float32]
    """`[n, n_vocab]`: probabilities times `sums`, 1 for the likeliest token."""
    sums: NDArray[np.float64]
    top: NDArray[np.int64]
    next_tokens: NDArray[np.int64]
    """What the text goes on with, `[n]`."""
    nll: NDArray[np.float64]


def reference_rows(logits: Logits, next_tokens: Sequence[int]) -> ReferenceRows:
    """The distributions of a batch, ready to be compared with.

    Args:
        logits: `[n, n_vocab]`, of which the first rows are taken, one for each next token.
        next_tokens: What the text goes on with.

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
    """What is kept of the reference's own rows."""
    rows = np.zeros(len(reference.nll), dtype=ROW)
    rows["nll"] = reference.nll
    rows["same_top"] = True
    rows["is_right"] = reference.top == reference.next_tokens
    return rows


def compared_rows(reference: ReferenceRows, logits: Logits, start: int = 0) -> Rows:
    """How far a candidate's rows are from the reference's.

    Args:
        reference: The reference's rows.
        logits: The candidate's, `[m, n_vocab]`, for the reference's rows from `start` on; more rows
            than there are left are not looked at.
        start: First row.

    Raises:
        QualityError: a logit is no number.
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
    # A constant on all logits means nothing, and would take digits from the mean.
    difference -= np.take_along_axis(difference, reference.top[theirs][:, None], axis=1)
    picked = np.take_along_axis(difference, next_tokens[:, None], axis=1)[:, 0].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        sums = reference.sums[theirs]
        weighted = weights * difference
        # numpy adds pairwise here, `einsum` one by one: 1e-5 off
        mean = (weighted.sum(axis=1) / sums).astype(np.float32)
        np.exp(np.subtract(mean[:, None], difference, out=difference), out=difference)
        shares = np.multiply(weights, difference, out=weighted).sum(axis=1)
        kl = np.log(shares / sums)
        delta = picked - mean + kl
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


def _blocks(n: int, n_vocab: int) -> Iterator[slice]:
    """The rows in blocks of at most `BLOCK_VALUES` logits, or of one row."""
    size = max(1, BLOCK_VALUES // n_vocab)
    return (slice(start, min(start + size, n)) for start in range(0, n, size))
