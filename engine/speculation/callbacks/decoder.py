"""Speculative decoding with the caller's own draft and target functions."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Tokens

from engine.backends.base import Logits
from engine.clock import Stopwatch
from engine.configuration import MAX_DRAFT, ControllerName, SpeculationSettings
from engine.errors import PresetError
from engine.sampling.sampler import Sampler
from engine.speculation.auto import AutoController
from engine.speculation.callbacks.calls import (
    CallbackPredictor,
    DraftCallback,
    TargetCallback,
    called,
)
from engine.speculation.callbacks.events import (
    DecoderEvent,
    DecodingComplete,
    DraftingStopped,
    DraftMade,
    DraftVerified,
    EndReason,
)
from engine.speculation.callbacks.statistics import StatisticsSummary
from engine.speculation.controller import RoundOutcome
from engine.speculation.drafter import Draft, Drafter, make_controller
from engine.speculation.predictors.guard import GuardedPredictor
from engine.speculation.verify import Verdict, settle, verify_draft


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
        """Give the tokens behind a prompt, an end token included.

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
        """Tell each draft, each verification and the end, as they happen.

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
