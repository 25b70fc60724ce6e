"""Counts and times of a callback decoder, over as many calls as its user likes."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class StatisticsSummary:
    """The sums of some rounds."""

    n_rounds: int = 0
    n_forwards: int = 0
    """Calls of the target function."""
    n_drafted: int = 0
    n_accepted: int = 0
    n_emitted: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    n_plain: int = 0
    """Rounds without a draft."""
    plain_s: float = 0.0
    """Time of those rounds."""

    @property
    def n_refuted(self) -> int:
        """Drafted tokens that were not accepted."""
        return self.n_drafted - self.n_accepted

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted of the drafted tokens, None before there is one."""
        return self.n_accepted / self.n_drafted if self.n_drafted else None

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens that a call of the target gave on average, None before there is one."""
        return self.n_emitted / self.n_rounds if self.n_rounds else None

    @property
    def speed_up(self) -> float | None:
        """Time of as many plain rounds over the time taken; None without drafts or plain rounds.

        Never more than `tokens_per_round`: no batch is faster than a plain round is.
        """
        elapsed_s, per_round = self.draft_s + self.verify_s, self.tokens_per_round
        if not self.n_plain or not self.n_drafted or elapsed_s <= 0.0 or per_round is None:
            return None
        return min(self.n_emitted * (self.plain_s / self.n_plain) / elapsed_s, per_round)

    def formatted(self) -> str:
        """Give the statistics as lines to show."""
        rate, speed_up = self.acceptance_rate, self.speed_up
        per_round = self.tokens_per_round
        return "\n".join(
            (
                f"tokens      {self.n_emitted} in {self.n_rounds} rounds"
                + (f", {per_round:.2f} a round" if per_round is not None else ""),
                f"drafted     {self.n_drafted}: {self.n_accepted} accepted, "
                f"{self.n_refuted} refuted" + (f" ({rate:.0%} right)" if rate is not None else ""),
                f"time        {self.draft_s:.3f} s drafting, {self.verify_s:.3f} s verifying",
                "speed-up    "
                + (
                    f"{speed_up:.2f}"
                    if speed_up is not None
                    else "unknown: it takes drafts and plain rounds"
                ),
            )
        )

    def __add__(self, other: "StatisticsSummary") -> "StatisticsSummary":
        """Give the sums of both."""
        return StatisticsSummary(
            *(getattr(self, each.name) + getattr(other, each.name) for each in fields(self))
        )
