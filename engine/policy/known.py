"""Measured and guessed quality of the K/V types of one model."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.configuration import KVTypes
from engine.memory.kv_cache import is_whole
from engine.policy.choice import (
    Basis,
    Candidate,
    checked,
    has_verdict,
    reference_seconds,
    speed_order,
)
from engine.policy.gates import Gates
from engine.policy.pairs import COARSENESS, guessed_cost
from engine.quality.records import MIN_VERDICT_TOKENS, Report

MAX_COST = 8.0
"""Maximum cost in halvings of the context; pairs named by the user may be far beyond the gates."""
BIASED_KEYS = (
    "{} keys break models with biased key projections, such as this model; Qwen2.5-Coder-0.5B with "
    "q4_0 had a different top token at 39 of 100 positions and a mean KL of 1.03"
)
USUAL_N_CTX = 8192
"""Context at which speeds are compared if none is known yet."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The quality of one pair, and its source."""

    basis: Basis
    text: str
    """The figures, the guess, or why there is none."""
    short: str
    """The quality in at most eight characters, for a table."""
    passes: bool | None = None
    """Whether it passes the gates; None if not measured."""


@dataclass(frozen=True, slots=True)
class Known:
    """The measurement of a model with this build of llama.cpp, if there is one.

    Measured figures and guesses are not mixed: with a report, types that it lacks are unknown.
    """

    report: Report | None = None
    gates: Gates = field(default_factory=Gates)
    has_rates: bool = False
    """Whether the speeds of the report are those of the planned machine."""
    has_key_biases: bool = False
    """Whether the model adds biases to its keys, as Qwen2 does; such keys need many bits."""
    notes: tuple[str, ...] = ()
    """Notes about the saved measurements, such as an unreadable file."""

    candidates: dict[KVTypes, Candidate] = field(init=False, compare=False, repr=False)
    """The measured pairs, the most precise first; empty without a report."""

    def __post_init__(self) -> None:
        found = () if self.report is None else checked(self.report, self.gates)
        object.__setattr__(self, "candidates", {each.pair: each for each in found})

    @property
    def has_verdict(self) -> bool:
        """Whether there is a usable report."""
        return self.report is not None and has_verdict(self.report)

    def standing(self, pair: KVTypes) -> Standing:
        """The quality of a pair."""
        found = self.candidates.get(pair)
        if self.report is None:
            return Standing(Basis.GUESSED, self._guess(pair), "guess")
        if found is None or found.measured is None:
            text = f"this type is not among the {len(self.candidates)} measured types"
            return Standing(Basis.UNKNOWN, text, "?")
        if found.measured.role == "reference":
            text = "the reference type of the comparison"
            return Standing(Basis.MEASURED, text, "reference", passes=True)
        scores, passes = found.measured.scores, None
        kl = f"{scores.kl_mean.value:.4f}"
        text = f"same top token {100 * scores.same_top.value:.1f} %, mean KL {kl}"
        if self.has_verdict:
            passes = not found.objections
            text += "".join(f"; {each}" for each in found.objections[:1])
        else:
            n = self.report.n_tokens
            text += f"; no verdict: only {n:,} of {MIN_VERDICT_TOKENS:,} required tokens"
        return Standing(Basis.MEASURED, text, kl, passes)

    def allowed_types(self) -> tuple[KVTypes, ...]:
        """The measured pairs that pass the gates, the most precise first."""
        if not self.has_verdict:
            return ()
        return tuple(pair for pair, each in self.candidates.items() if not each.objections)

    def fastest_first(self, pairs: Iterable[KVTypes]) -> tuple[KVTypes, ...]:
        """Pairs by their measured speeds; unchanged if those are of another machine."""
        known, listed = self.candidates, tuple(pairs)
        if self.report is None or not self.has_rates or any(pair not in known for pair in listed):
            return listed
        base_s = reference_seconds(self.report, USUAL_N_CTX // 2)
        return tuple(sorted(listed, key=lambda e: speed_order(known[e].timed(USUAL_N_CTX), base_s)))

    def costs(self, pairs: Iterable[KVTypes]) -> tuple[float, ...]:
        """The cost of each pair in halvings of the context: measured for all, or guessed for all.

        A pair at its limits costs 1, as four bits do by guess: it must double the context.
        """
        listed, known = tuple(pairs), self.candidates
        is_known = all(pair in known or is_whole(pair) for pair in listed)
        if not self.has_verdict or not is_known:
            return tuple(map(guessed_cost, listed))
        return tuple(min(known[pair].usage, MAX_COST) if pair in known else 0.0 for pair in listed)

    def _guess(self, pair: KVTypes) -> str:
        if is_whole(pair):
            return f"{pair} is assumed to be lossless"
        if self.has_key_biases and COARSENESS[pair.k] > COARSENESS["q8_0"]:
            return BIASED_KEYS.format(pair.k)
        if max(COARSENESS[pair.k], COARSENESS[pair.v]) <= COARSENESS["q8_0"]:
            return "8-bit types cost almost no quality on most models"
        return "types with fewer than 8 bits cost quality on most models"
