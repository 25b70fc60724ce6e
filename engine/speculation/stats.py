"""Counts and times of one reply."""

from dataclasses import dataclass, field

from engine.events import GenerationStats, RoundFinished, SourceCounts


@dataclass(slots=True)
class ReplyStats:
    """Adds rounds up; the counts are kept apart and none is derived from another."""

    n_prompt: int
    n_reused: int
    prefill_s: float
    rounds: int = 0
    drafted: int = 0
    verified: int = 0
    examined: int = 0
    accepted: int = 0
    emitted: int = 0
    first_token_s: float | None = None
    decode_s: float = 0.0
    by_source: dict[str, SourceCounts] = field(default_factory=dict)

    def add(self, finished: RoundFinished) -> None:
        """Count one round."""
        self.rounds += 1
        self.drafted += finished.n_drafted
        self.verified += finished.n_verified
        self.examined += finished.n_examined
        self.accepted += finished.n_accepted
        self.emitted += finished.n_emitted
        self.decode_s += finished.elapsed_s
        if finished.source is not None and finished.n_drafted:
            self.by_source[finished.source] = _added(
                self.by_source.get(finished.source, SourceCounts()), finished
            )

    def summary(self, plain_step_s: float | None) -> GenerationStats:
        """Give the figures as they stand; rates are None where nothing was measured."""
        tps = self.emitted / self.decode_s if self.decode_s > 0 and self.emitted else None
        saved = None if plain_step_s is None else self.emitted * plain_step_s - self.decode_s
        return GenerationStats(
            n_prompt=self.n_prompt,
            n_reused=self.n_reused,
            n_rounds=self.rounds,
            n_drafted=self.drafted,
            n_verified=self.verified,
            n_examined=self.examined,
            n_accepted=self.accepted,
            n_emitted=self.emitted,
            by_source=dict(self.by_source),
            prefill_s=self.prefill_s,
            first_token_s=self.first_token_s,
            decode_s=self.decode_s,
            decode_tps=tps,
            plain_step_s=plain_step_s,
            saved_s=saved,
        )


def _added(counts: SourceCounts, finished: RoundFinished) -> SourceCounts:
    return SourceCounts(
        n_drafted=counts.n_drafted + finished.n_drafted,
        n_verified=counts.n_verified + finished.n_verified,
        n_examined=counts.n_examined + finished.n_examined,
        n_accepted=counts.n_accepted + finished.n_accepted,
        n_rounds=counts.n_rounds + 1,
    )
