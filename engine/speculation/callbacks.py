"""Speculative decoding around two functions of the caller, without a backend."""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, fields
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from engine.backends.base import Logits
from engine.clock import Stopwatch
from engine.configuration import MAX_DRAFT, ControllerName, SpeculationSettings
from engine.errors import DecodeError, PresetError
from engine.sampling import Sampler
from engine.speculation.auto import AutoController
from engine.speculation.controller import RoundOutcome
from engine.speculation.drafter import Draft, Drafter, make_controller
from engine.speculation.predictors.base import DraftToken
from engine.speculation.predictors.guard import GuardedPredictor
from engine.speculation.verify import Verdict, settle, verify_draft

DraftCallback = Callable[[Tokens[int], int], Iterable[int | DraftToken]]
"""Called with the line and the most tokens that are wanted; gives guesses, best as a generator:
it is left as soon as enough is drafted. A plain number is a guess of no known confidence."""

TargetCallback = Callable[[Tokens[int], Tokens[int]], ArrayLike]
"""Called with the line and a draft; gives `[len(draft) + 1, n_vocab]` logits: row `i` is what the
model says behind the line and the first `i` drafted tokens. A caller that keeps a cache finds in
the length of the line how much of the last draft was accepted."""

UNKNOWN_CONFIDENCE = 0.5


class CallbackPredictor:
    """Makes a predictor of a draft function."""

    name = "callback"

    def __init__(self, draft: DraftCallback) -> None:
        self._draft = draft
        self._line: list[int] = []
        self.n_wanted = 1
        """Most tokens that the next proposal is asked for."""

    def reset(self, history: Tokens[int]) -> None:
        self._line = list(history)

    def commit(self, tokens: Tokens[int]) -> None:
        self._line.extend(tokens)

    def propose(self) -> Iterator[DraftToken]:
        if not self._line:
            return
        for guess in self._draft(tuple(self._line), self.n_wanted):
            if isinstance(guess, DraftToken):
                yield guess
            else:
                yield DraftToken(guess, UNKNOWN_CONFIDENCE)

    def close(self) -> None:
        self._line = []


def called(target: TargetCallback, line: Tokens[int], draft: Tokens[int], n_vocab: int) -> Logits:
    """Call the target function and give its `[len(draft) + 1, n_vocab]` float32 logits.

    Raises:
        DecodeError: it gave another shape, or a row in which no token can be drawn.
    """
    given = np.asarray(target(tuple(line), tuple(draft)))
    wanted = (len(draft) + 1, n_vocab)
    if given.shape != wanted or not np.issubdtype(given.dtype, np.number):
        raise DecodeError(
            f"the target function gave {given.dtype} of shape {list(given.shape)}: "
            f"{list(wanted)} logits are wanted, one row behind the line and one behind each of "
            f"the {len(draft)} drafted tokens"
        )
    logits: Logits = given.astype(np.float32, copy=False)
    if np.isnan(logits).any() or not np.isfinite(logits.max(axis=1)).all():
        raise DecodeError("the target function gave a row of logits with NaN or without a largest")
    return logits


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
        """The statistics as lines to show."""
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
        """The sums of both."""
        return StatisticsSummary(
            *(getattr(self, each.name) + getattr(other, each.name) for each in fields(self))
        )


class EndReason(StrEnum):
    """Why decoding ended."""

    END = "end"
    """The target drew an end token; it is the last of the tokens."""
    LENGTH = "length"
    """`max_tokens` were made."""


@dataclass(frozen=True, slots=True)
class DraftMade:
    """A draft is about to be verified; empty in a plain round."""

    tokens: tuple[int, ...]
    elapsed_s: float
    reason: str
    """Why the draft has this length."""


@dataclass(frozen=True, slots=True)
class DraftVerified:
    """The target has spoken."""

    tokens: tuple[int, ...]
    """What became text: the accepted tokens and the target's own next one."""
    n_drafted: int
    n_accepted: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class DraftingStopped:
    """The draft function failed; the target goes on alone."""

    reason: str


@dataclass(frozen=True, slots=True)
class DecodingComplete:
    """Nothing follows."""

    tokens: tuple[int, ...]
    reason: EndReason
    statistics: StatisticsSummary
    """Of this and earlier calls, since the last reset."""


DecoderEvent = DraftMade | DraftVerified | DraftingStopped | DecodingComplete


class CallbackDecoder:
    """Draws tokens from a target function, faster by the guesses of a draft function.

    The tokens follow the law of the target and the sampler alone (`verify.verify_draft`): at
    temperature 0, and with `coupled` or `match` verification, they are those of the target without
    a draft. One call of the target gives each round's tokens, and none is made for tokens that are
    not wanted. A draft function that raises, proposes garbage or answers late is left out.

    `is_end` tells the tokens that end the text. What the controller learns stays from call to call.
    """

    def __init__(
        self,
        draft: DraftCallback,
        target: TargetCallback,
        sampler: Sampler,
        *,
        n_vocab: int,
        settings: SpeculationSettings,
        is_end: Callable[[int], bool],
    ) -> None:
        self._draft = draft
        self._target = target
        self._sampler = sampler
        self._n_vocab = n_vocab
        self._settings = settings
        self._is_end = is_end
        self._auto = AutoController()
        self.statistics = StatisticsSummary()
        """Sums over all calls since the last reset."""

    def reset_statistics(self) -> None:
        """Start the sums again."""
        self.statistics = StatisticsSummary()

    def decode(self, prompt: Tokens[int], *, max_tokens: int) -> tuple[int, ...]:
        """The tokens behind a prompt, an end token included.

        Raises:
            PresetError: the prompt is empty or `max_tokens` negative.
            DecodeError: the target function gave no logits.
        """
        tokens: tuple[int, ...] = ()
        for event in self.events(prompt, max_tokens=max_tokens):
            if isinstance(event, DecodingComplete):
                tokens = event.tokens
        return tokens

    def events(self, prompt: Tokens[int], *, max_tokens: int) -> Iterator[DecoderEvent]:
        """Each draft, each verification and the end, as they happen.

        Raises:
            PresetError: the prompt is empty or `max_tokens` negative.
            DecodeError: the target function gave no logits.
        """
        if not prompt or max_tokens < 0:
            raise PresetError(
                f"the prompt has {len(prompt)} tokens and max_tokens is {max_tokens}: give at "
                "least one token, and 0 or more to make"
            )
        line, n_prompt = list(prompt), len(prompt)
        predictor = CallbackPredictor(self._draft)
        drafter = self._drafter(predictor, line)
        is_told = False
        has_ended = False
        while not has_ended and len(line) - n_prompt < max_tokens:
            room = max_tokens - (len(line) - n_prompt) - 1
            yield from self._round(line, drafter, predictor, room)
            has_ended = self._is_end(line[-1])
            if drafter.fault is not None and not is_told:
                is_told = True
                yield DraftingStopped(drafter.fault)
        reason = EndReason.END if has_ended else EndReason.LENGTH
        yield DecodingComplete(tuple(line[n_prompt:]), reason, self.statistics)

    def _drafter(self, predictor: CallbackPredictor, line: Tokens[int]) -> Drafter:
        plain = self._auto.costs.plain
        guarded = GuardedPredictor(
            predictor, name=predictor.name, n_vocab=self._n_vocab, plain_step=plain
        )
        controller = make_controller(self._settings, self._auto)
        drafter = Drafter((guarded,), controller, self._settings)
        drafter.reset(line, n_plain_steps=plain.n_measured)
        return drafter

    def _round(
        self, line: list[int], drafter: Drafter, predictor: CallbackPredictor, room: int
    ) -> Iterator[DecoderEvent]:
        watch = Stopwatch()
        is_automatic = self._settings.controller is ControllerName.AUTO
        predictor.n_wanted = min(MAX_DRAFT if is_automatic else max(1, drafter.length), room)
        draft = drafter.draft(min(MAX_DRAFT, room))
        draft_s = watch.split()
        yield DraftMade(draft.tokens, draft_s, drafter.reason)
        watch.split()
        verdict = self._verified(line, draft)
        committed = self._committed(draft.tokens, verdict)
        verify_s = watch.split()
        line.extend(committed)
        n_verified = len(draft.tokens)
        outcome = RoundOutcome(
            n_verified=n_verified,
            n_examined=verdict.n_examined,
            n_accepted=verdict.n_accepted,
            n_emitted=len(committed),
            n_drafted=draft.n_drafted,
            draft_s=draft_s,
            verify_s=verify_s,
        )
        self._auto.costs.add(1 + n_verified, verify_s)
        drafter.observe(outcome, committed)
        self.statistics += StatisticsSummary(
            n_rounds=1,
            n_forwards=1 + verdict.is_redecoded,
            n_drafted=n_verified,
            n_accepted=verdict.n_accepted,
            n_emitted=len(committed),
            draft_s=draft_s,
            verify_s=verify_s,
            n_plain=int(not n_verified),
            plain_s=0.0 if n_verified else draft_s + verify_s,
        )
        yield DraftVerified(tuple(committed), n_verified, verdict.n_accepted, verify_s)

    def _verified(self, line: list[int], draft: Draft) -> Verdict:
        """The verdict on a draft: by one call of the target, or two where `strict` asks for it."""
        verdict = verify_draft(
            draft.tokens,
            self._rows(line, draft.tokens),
            self._sampler,
            line,
            verification=self._settings.verification,
            laws=draft.laws,
            strict=self._settings.strict,
        )
        if not verdict.is_open:
            return verdict
        accepted = [*line, *draft.tokens[: verdict.n_accepted]]
        row = self._rows(accepted, ())[0]
        return settle(verdict, draft.tokens, row, self._sampler, accepted)

    def _rows(self, line: Tokens[int], draft: Tokens[int]) -> Logits:
        rows = called(self._target, line, draft, self._n_vocab)
        return rows if self._settings.bonus_token or not draft else rows[:-1]

    def _committed(self, draft: tuple[int, ...], verdict: Verdict) -> list[int]:
        """What becomes text: up to an end token."""
        added = () if verdict.next_token is None else (verdict.next_token,)
        committed: list[int] = []
        for token in (*draft[: verdict.n_accepted], *added):
            committed.append(token)
            if self._is_end(token):
                break
        return committed
