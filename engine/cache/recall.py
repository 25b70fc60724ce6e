"""What a reply starts from: a sequence, and what of its prompt need not be computed.

The tokens of a prompt are looked for in the context itself, in main memory and on disk; the longest
start of them that lies somewhere is used. What a reply added is kept the same way. Only committed
tokens get here, so nothing that was refuted is ever kept.
"""

from collections import deque
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, replace
from statistics import median

from engine.backends.base import Backend, Sequence, rewind
from engine.cache.prefix_cache import Match, PrefixCache
from engine.cache.report import CacheReport, CacheSettings, TierUse
from engine.cache.requantised import OtherTypes, Requantised
from engine.cache.slots import HotTier, empty
from engine.clock import Stopwatch
from engine.errors import ContextFullError, StateError

MIN_GAIN = 16
"""Tokens that a kept state must bring beyond what the context holds; fewer are computed sooner."""


class PromptRate:
    """The time of one token of a prompt: the median over the last prompts that were computed."""

    MIN_TOKENS = 16
    """A shorter prompt says more about a batch's fixed cost than about a token's."""
    RECENT = 15

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=self.RECENT)

    def add(self, n_tokens: int, elapsed_s: float) -> None:
        """Take the time of computing a prompt, or what was left of it."""
        if n_tokens >= self.MIN_TOKENS:
            self._samples.append(elapsed_s / n_tokens)

    def seconds_of(self, n_tokens: int) -> float | None:
        """What computing that many tokens would take; None before anything was measured."""
        return n_tokens * median(self._samples) if self._samples else None


@dataclass(frozen=True, slots=True)
class Recalled:
    """Where a reply begins."""

    sequence: Sequence
    n_hot: int = 0
    n_warm: int = 0
    n_cold: int = 0
    restore_s: float = 0.0
    recompute_s: float | None = None
    """What computing the restored tokens took when that was timed, None where it was not."""
    n_branch: int = 0
    """Tokens that other lines began with too: where no state lies, one is worth being made there;
    0 where there is none."""
    requantised: Requantised | None = None
    """What was converted from other cache types on the way."""

    @property
    def n_reused(self) -> int:
        """Tokens that need not be computed."""
        return self.n_hot + self.n_warm + self.n_cold


class Recall:
    """The tiers of one session, from its own thread; without `tiers` only the context is used."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._hot = HotTier(backend)
        self._slot = self._hot.slots[0]
        self._tiers: PrefixCache | None = None
        self._others: OtherTypes | None = None
        self._settings = CacheSettings()
        self._n_looked_at = 0
        """Tokens that the sequence held when it was last looked at for what to keep."""
        self.rate = PromptRate()

    @property
    def sequence(self) -> Sequence:
        """The sequence of the reply that is made, or was made last."""
        return self._slot.sequence

    def attach(
        self, tiers: PrefixCache, settings: CacheSettings, others: OtherTypes | None = None
    ) -> None:
        """Use and fill these tiers from now on, from states of `others` where they have less."""
        self._tiers, self._settings, self._others = tiers, settings, others

    def begin(self, tokens: Tokens[int], owner: str, *, may_shift: bool = False) -> Recalled:
        """Choose a sequence, and make it hold as much of the start of `tokens` as lies anywhere."""
        watch = Stopwatch()
        recalled = self._shifted(tokens, owner) if may_shift else None
        if recalled is None:
            recalled = self._found(tokens, owner)
        self._hot.use(self._slot, owner)
        self._hot.make_room(self._slot, len(tokens) - recalled.n_reused + self._backend.n_rows)
        n_restored = recalled.n_warm + recalled.n_cold
        restore_s = watch.total() if n_restored else 0.0
        if self._tiers is not None and owner:
            self._tiers.note_hit(
                n_hot=recalled.n_hot,
                n_warm=recalled.n_warm,
                n_cold=recalled.n_cold,
                n_computed=len(tokens) - recalled.n_reused,
                saved_s=self._saved_s(recalled, restore_s),
            )
        return replace(recalled, restore_s=restore_s)

    def _saved_s(self, recalled: Recalled, restore_s: float) -> float | None:
        """What restoring spared; None where nothing was, or its computing was never timed."""
        n_restored = recalled.n_warm + recalled.n_cold
        if not n_restored:
            return None
        recompute_s = self.rate.seconds_of(n_restored)
        if recompute_s is None:
            recompute_s = recalled.recompute_s
        return None if recompute_s is None else recompute_s - restore_s

    def make_room(self) -> None:
        """See to it that a shared pool of cells has room for one more round."""
        self._hot.make_room(self._slot, self._backend.n_rows)

    def is_due(self) -> bool:
        """Whether so much was computed since the last look that it is kept now."""
        n_wanted = self._settings.checkpoint_tokens
        return 0 < n_wanted <= self._slot.n_tokens - self._n_looked_at and self._keeps

    def keep_prompt(self) -> None:
        """Keep a prompt that was just read, where a later cut cannot come back to its end."""
        if not self._backend.can_slice:
            self.keep()

    def keep(self) -> None:
        """Keep what the sequence holds, as far as no tier has it."""
        tokens, tiers = self._slot.sequence.tokens, self._tiers
        if tiers is None or not self._keeps:
            return
        self._n_looked_at = len(tokens)
        with tiers.match(tokens, owner=self._slot.owner) as match:
            if len(tokens) - match.n_tokens >= self._settings.min_tokens:
                self._save(tiers, tokens, match.n_tokens if self._backend.can_slice else 0)

    def _save(self, tiers: PrefixCache, tokens: Tokens[int], start: int) -> None:
        recompute_s = self.rate.seconds_of(len(tokens) - start) or 0.0
        try:
            state = self._slot.sequence.save(start)
            tiers.put(tokens, start, state, recompute_s=recompute_s, owner=self._slot.owner)
        except StateError as error:
            tiers.note(f"What was computed could not be kept: {error}", is_problem=True)

    @property
    def _keeps(self) -> bool:
        """Whether the line is somebody's, and its state is that of its tokens."""
        return self._tiers is not None and bool(self._slot.owner) and self._slot.is_pure

    def report(self) -> CacheReport:
        """Where everything lies; from any thread."""
        hot = self._hot_use()
        if self._tiers is None:
            return CacheReport(tiers=(hot,))
        report = self._tiers.upkeep.report()
        keys = {
            key
            for slot in tuple(self._hot.slots)
            if slot.is_pure
            for key in self._tiers.keys_on(list(slot.sequence.tokens))
        }
        entries = tuple(
            replace(entry, tiers=("hot", *entry.tiers)) if entry.key in keys else entry
            for entry in report.entries
        )
        return replace(report, tiers=(hot, *report.tiers), entries=entries)

    def _hot_use(self) -> TierUse:
        n_pools = 1 if self._backend.shares_cells else self._backend.n_sequences
        n_cells = self._backend.n_ctx * n_pools
        n_held = min(self._hot.n_held, n_cells)
        return TierUse(
            name="hot",
            n_entries=sum(slot.n_tokens > 0 for slot in self._hot.slots),
            n_tokens=n_held,
            nbytes=round(self._backend.kv_bytes * n_held / n_cells),
            budget_bytes=self._backend.kv_bytes,
            budget_tokens=n_cells,
        )

    def _found(self, tokens: Tokens[int], owner: str) -> Recalled:
        best, n_hot = self._hot.best(tokens)
        match = None if self._tiers is None else self._tiers.match(tokens, owner=owner)
        match, requantised = self._extended(tokens, owner, match, n_hot)
        n_branch = 0 if self._tiers is None else self._n_branch(self._tiers, tokens)
        if match is not None and match.n_tokens >= n_hot + MIN_GAIN:
            self._slot = self._hot.slot_for(best, n_hot, owner)
            restored = self._restored(tokens, match)
            if restored is not None:
                return replace(restored, n_branch=n_branch, requantised=requantised)
        else:
            if match is not None:
                match.release()
            self._slot = self._hot.claim(best, n_hot, owner)
        n_held = self._rewound(tokens)
        return Recalled(self._slot.sequence, n_hot=n_held, n_branch=n_branch)

    def _extended(
        self, tokens: Tokens[int], owner: str, match: Match | None, n_hot: int
    ) -> tuple[Match | None, Requantised | None]:
        """A match with what other cache types had beyond it, and what was converted for that."""
        if match is None or self._tiers is None or self._others is None:
            return match, None
        beyond = max(match.n_tokens, n_hot) + MIN_GAIN
        requantised = self._others.bring(self._tiers, tokens, owner, beyond=beyond)
        if requantised is None:
            return match, None
        match.release()
        return self._tiers.match(tokens, owner=owner), requantised

    def _restored(self, tokens: Tokens[int], match: Match) -> Recalled | None:
        """Load what a match found; None where nothing of it was usable."""
        assert self._tiers is not None
        slot = self._slot
        try:
            states = self._tiers.read(match)
            if not states:
                return None
            self._hot.make_room(slot, match.n_tokens)
            slot.sequence.load(tokens[: match.n_tokens], states)
        except StateError as error:
            self._tiers.refuse(match, str(error))
            return None
        except ContextFullError as error:
            self._tiers.note(f"What is kept was not restored: {error}", is_problem=True)
            return None
        finally:
            match.release()
        slot.is_pure = True
        n_held = self._rewound(tokens)
        n_cold = min(match.n_cold, n_held)
        return Recalled(
            slot.sequence,
            n_warm=n_held - n_cold,
            n_cold=n_cold,
            recompute_s=match.recompute_s,
        )

    def _n_branch(self, tiers: PrefixCache, tokens: Tokens[int]) -> int:
        """Where other lines leave this one, if a state is wanted there."""
        return 0 if self._backend.can_slice else tiers.n_known(tokens)

    def _rewound(self, tokens: Tokens[int]) -> int:
        if not self._slot.is_pure:
            empty(self._slot)
        self._slot.is_pure = True
        self._n_looked_at = rewind(self._slot.sequence, tokens)
        return self._n_looked_at

    def _shifted(self, tokens: Tokens[int], owner: str) -> Recalled | None:
        found = self._hot.shiftable(tokens, owner)
        if found is None:
            return None
        self._slot, n_keep, n_drop = found
        sequence = self._slot.sequence
        if n_drop:
            sequence.shift(n_keep, n_drop)
            self._slot.is_pure = False
        length = rewind(sequence, tokens, known=n_keep)
        self._slot.is_pure = self._slot.is_pure or not length
        return Recalled(sequence, n_hot=length)
