"""Acceptance probabilities and residual laws of rejection and block verification.

Both take the target's law p and the draft's law q at each drafted position, after every filter, and
decide without drawing: `verify` throws the dice. A token that was chosen and not drawn has a
one-hot q (`certain`).
"""

from collections.abc import Sequence as Tokens

import numpy as np

from engine.sampling.distribution import Distribution


def acceptance(token: int, target: Distribution, draft: Distribution) -> float:
    """Give min(1, p(x)/q(x)) (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1)."""
    return min(1.0, target.probability(token) / draft.probability(token))


def residual(target: Distribution, draft: Distribution, share: float = 1.0) -> Distribution:
    """Give the law ∝ max(share·p - q, 0), from which the token behind a refusal is drawn.

    `share` is 1 in rejection and the accepted prefix's P in block verification. Where nothing is
    left, which only rounding can bring about, it is p itself.
    """
    left = np.maximum(share * target.probs - draft.probabilities(target.tokens), 0.0)
    mass = left.sum()
    if mass <= 0.0:
        return target
    kept = left > 0.0
    return Distribution(target.tokens[kept], left[kept] / mass)


def block_share(share: float, token: int, target: Distribution, draft: Distribution) -> float:
    """Give P_i = min(1, P_{i-1}·p_i(x_i)/q_i(x_i)) from P_{i-1}; P_0 is 1.

    Sun et al. 2024, arXiv 2403.10444, algorithm 2.
    """
    return min(1.0, share * target.probability(token) / draft.probability(token))


def block_acceptances(
    shares: Tokens[float], targets: Tokens[Distribution], drafts: Tokens[Distribution]
) -> list[float]:
    """Give h_i, the probability with which the prefix of length i passes its test, i from 1 on.

    h_i = S_i/(S_i + 1 - P_i) with S_i = Σ max(P_i·p_{i+1} - q_{i+1}, 0), and h_K = P_K; the longest
    prefix that passes is accepted (Sun et al. 2024, equation 4). `shares` are P_0 to P_K; a draft
    may be cut behind its first P of 0, since nothing longer can pass.
    """
    inner = zip(shares[1:-1], targets[1:], drafts[1:], strict=True)
    return [*(_inner_acceptance(*given) for given in inner), shares[-1]]


def _inner_acceptance(share: float, target: Distribution, draft: Distribution) -> float:
    left = np.maximum(share * target.probs - draft.probabilities(target.tokens), 0.0).sum()
    whole = float(left) + 1.0 - share
    # 0/0: draft and target agree wholly here, so the next prefix passes for certain.
    return float(left) / whole if whole > 0.0 else 0.0
