"""Choose a reply's sequence, restore the longest cached prefix of its prompt, and save its state.

Prefixes are looked up in the context itself, in RAM and on disk. Only committed tokens are saved,
never refuted ones.
"""

import contextlib
from collections import deque
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, replace
from statistics import median

from engine.backends.base import Backend, Sequence, rewind
from engine.cache.index import Match
from engine.cache.prefix_cache import PrefixCache
from engine.cache.report import CacheReport, CacheSettings, TierUse
from engine.cache.slots import Adapters, Slot, Slots
from engine.clock import Stopwatch
from engine.errors import ContextFullError, StateError

MIN_GAIN = 16
"""Tokens that restoring or copying a state must save; computing fewer is faster."""


class TokenRate:
    """Median time per token of the last prompts that were computed or restored."""

    MIN_TOKENS = 16
    """Shorter prompts mostly measure a batch's fixed cost and are ignored."""
    RECENT = 15

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=self.RECENT)

    def add(self, n_tokens: int, elapsed_s: float) -> None:
        """Record the time of `n_tokens`."""
        if n_tokens >= self.MIN_TOKENS:
            self._samples.append(elapsed_s / n_tokens)

    def seconds_of(self, n_tokens: int) -> float | None:
        """Expected seconds of `n_tokens`; None before the first measurement."""
        return n_tokens * median(self._samples) if self._samples else None


@dataclass(frozen=True, slots=True)
class Recalled:
    """The slot of a reply, and where its prompt's reused tokens came from."""

    slot: Slot
    n_hot: int = 0
    n_copied: int = 0
    """Tokens copied from another slot; part of `n_hot`."""
    n_warm: int = 0
    n_cold: int = 0
    n_uncut: int = 0
    """Longest prefix in any slot, whether the slot can be cropped to it or not."""
    restore_s: float = 0.0
    recompute_s: float | None = None
    """Measured time of computing the restored tokens; None if not measured."""
    n_branch: int = 0
    """Length of the prefix shared with other prompts if it is to be saved, else 0."""

    @property
    def sequence(self) -> Sequence:
        """The slot's sequence."""
        return self.slot.sequence

    @property
    def n_reused(self) -> int:
        """Prompt tokens that are not computed."""
        return self.n_hot + self.n_warm + self.n_cold


class Recall:
    """Slots and cache tiers of one session, for its thread; before `attach` only the slots.

    A slot belongs to one reply from `begin` to `end`. `save` saves its state, at the latest
    before another reply uses the slot.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.slots = Slots(backend)
        self._tiers: PrefixCache | None = None
        self._settings = CacheSettings()
        self._ended: list[Slot] = []
        """Slots of ended replies whose states are not saved yet."""
        self.rate = TokenRate()
        self.restoring = TokenRate()

    def attach(self, tiers: PrefixCache, settings: CacheSettings) -> None:
        """Save states in these tiers, and restore from them, from now on."""
        self._tiers, self._settings = tiers, settings

    def begin(self, tokens: Tokens[int], owner: str, *, adapters: Adapters = None) -> Recalled:
        """Choose a slot and restore the longest cached prefix of `tokens` in it.

        With `adapters` other than the loaded ones, only the slots are searched: the tiers hold
        states of the loaded adapters.

        Raises:
            ContextFullError: all slots are generating.
        """
        watch = Stopwatch()
        self.save_ended()
        recalled = self._found(tokens, owner, adapters)
        slot = recalled.slot
        self.slots.use(slot, owner)
        n_restored = recalled.n_warm + recalled.n_cold
        restore_s = watch.total() if n_restored else 0.0
        if recalled.n_branch and recalled.n_branch == recalled.n_reused:
            self.save(slot)
        self.restoring.add(n_restored, restore_s)
        if self._tiers is not None and owner and adapters is None:
            recompute_s = None
            if n_restored:
                recompute_s = self.rate.seconds_of(n_restored) or recalled.recompute_s
            self._tiers.stats.count_prompt(
                n_hot=recalled.n_hot,
                n_warm=recalled.n_warm,
                n_cold=recalled.n_cold,
                n_computed=len(tokens) + 1 - recalled.n_reused,
                saved_s=None if recompute_s is None else recompute_s - restore_s,
            )
        return replace(recalled, restore_s=restore_s)

    def is_due(self, slot: Slot) -> bool:
        """Whether `checkpoint_tokens` were computed since the last save."""
        n_wanted = self._settings.checkpoint_tokens
        return 0 < n_wanted <= slot.n_tokens - slot.n_at_save and self._can_save(slot)

    def save_prompt(self, slot: Slot) -> None:
        """Save a prompt's state after prefill, if a later crop could not restore it."""
        if not self._backend.can_slice:
            self.save(slot)

    def save(self, slot: Slot) -> None:
        """Save the tokens of a slot that no tier has."""
        tokens, tiers = slot.sequence.tokens, self._tiers
        if tiers is None or not self._can_save(slot):
            return
        slot.n_at_save = len(tokens)
        with tiers.match(tokens, owner=slot.owner) as match:
            start = match.n_whole if self._backend.can_slice else 0
            is_branch = self._backend.can_slice and match.n_tokens == len(tokens)
            n_new = len(tokens) - (start if is_branch else match.n_tokens)
            if n_new < max(self._settings.min_tokens, 1):
                return
            if not start:
                match.release()  # the state needs no other; a lock would block its eviction
            self._put(tiers, slot, start)

    def discard(self, slot: Slot) -> None:
        """Empty a slot and drop all states of its prefixes, because they are wrong."""
        if self._tiers is not None:
            for key in self._tiers.keys_on(list(slot.sequence.tokens)):
                with contextlib.suppress(StateError):  # already dropped with another
                    self._tiers.drop(key)
        slot.clear()

    def end(self, slot: Slot) -> None:
        """Free a slot after its reply."""
        slot.is_busy = False
        if slot not in self._ended:
            self._ended.append(slot)

    def crop(self, slot: Slot, n_tokens: int) -> None:
        """Crop a slot to at most `n_tokens`; to 0 if the cache cannot be cropped there.

        A sliding window cannot if a batch of several sequences overwrote its cells.
        """
        sequence = slot.sequence
        if len(sequence.tokens) > n_tokens:
            sequence.crop(n_tokens if sequence.can_crop(n_tokens) else 0)
        slot.n_at_save = min(slot.n_at_save, slot.n_tokens)

    def save_ended(self) -> None:
        """Save the states of the replies that ended since the last call, if tiers are attached."""
        if self._tiers is None:
            return
        while self._ended:
            slot = self._ended.pop()
            if not slot.is_busy:  # otherwise saved when its present reply ends
                self.save(slot)

    def _put(self, tiers: PrefixCache, slot: Slot, start: int) -> None:
        tokens = slot.sequence.tokens
        recompute_s = self.rate.seconds_of(len(tokens) - start) or 0.0
        try:
            state = slot.sequence.save(start)
            tiers.put(tokens, start, state, recompute_s=recompute_s, owner=slot.owner)
        except StateError as error:
            tiers.stats.note(f"The computed state could not be saved: {error}", is_problem=True)

    def _can_save(self, slot: Slot) -> bool:
        """Whether the slot has an owner and was computed with the tiers' adapters."""
        return self._tiers is not None and bool(slot.owner) and slot.adapters is None

    def report(self) -> CacheReport:
        """Use and entries of all tiers; callable from any thread."""
        hot = self._hot_use()
        if self._tiers is None:
            return CacheReport(tiers=(hot,))
        report = self._tiers.report()
        keys = {
            key
            for slot in tuple(self.slots.opened)
            if slot.adapters is None
            for key in self._tiers.keys_on(list(slot.sequence.tokens))
        }
        entries = tuple(
            replace(entry, tiers=("hot", *entry.tiers)) if entry.key in keys else entry
            for entry in report.entries
        )
        return replace(report, tiers=(hot, *report.tiers), entries=entries)

    def _hot_use(self) -> TierUse:
        n_cells = self._backend.n_ctx * self._backend.n_sequences
        n_held = min(sum(slot.n_tokens for slot in self.slots.opened), n_cells)
        return TierUse(
            name="hot",
            n_entries=sum(slot.n_tokens > 0 for slot in self.slots.opened),
            n_tokens=n_held,
            nbytes=round(self._backend.kv_bytes * n_held / n_cells),
            budget_bytes=self._backend.kv_bytes,
            budget_tokens=n_cells,
        )

    def _found(self, tokens: Tokens[int], owner: str, adapters: Adapters) -> Recalled:
        best, n_hot = self.slots.best(tokens, adapters)
        n_uncut = max(slot.n_common(tokens, adapters) for slot in self.slots.opened)
        slot = self.slots.choose(best, n_hot, owner)
        recalled, match, can_slice = None, Match(), self._backend.can_slice
        if self._tiers is not None and adapters is None:
            match = self._tiers.match(tokens, owner=owner, max_end=self._backend.n_ctx)
        with match:
            n_shared = match.n_known - match.n_whole
            n_branch = match.n_known if n_shared >= max(self._settings.min_tokens, 1) else 0
            # Another slot's whole state is copied if the tiers have less and half of it is reused.
            is_copied = n_hot >= match.n_tokens + MIN_GAIN and 2 * n_hot >= best.n_tokens
            if slot is not best and can_slice and is_copied:
                slot.clear()
                slot.sequence.load(list(best.sequence.tokens), [best.sequence.save()])
                slot.adapters = best.adapters
            elif match.n_tokens >= MIN_GAIN + (n_hot if slot is best else 0):
                recalled = self._restored(slot, tokens, match)
        if recalled is None:
            n_held = self._rewound(slot, tokens, adapters)
            recalled = Recalled(slot, n_hot=n_held, n_copied=n_held if slot is not best else 0)
        return replace(recalled, n_uncut=n_uncut, n_branch=n_branch)

    def _restored(self, slot: Slot, tokens: Tokens[int], match: Match) -> Recalled | None:
        """Load a match's states into a slot; None if none was usable."""
        assert self._tiers is not None
        try:
            states = self._tiers.read(match)
            if not states:
                return None
            slot.sequence.load([*tokens[: match.n_tokens], *match.tail], states)
        except StateError as error:
            self._tiers.refuse(match, str(error))
            return None
        except ContextFullError as error:
            self._tiers.stats.note(
                f"The saved state could not be restored: {error}", is_problem=True
            )
            return None
        slot.adapters = None
        n_held = self._rewound(slot, tokens, None)
        n_cold = min(match.n_cold, n_held)
        return Recalled(slot, 0, 0, n_held - n_cold, n_cold, recompute_s=match.recompute_s)

    def _rewound(self, slot: Slot, tokens: Tokens[int], adapters: Adapters) -> int:
        if slot.adapters != adapters:
            slot.clear()
        slot.adapters = adapters
        slot.n_at_save = rewind(slot.sequence, tokens)
        return slot.n_at_save
