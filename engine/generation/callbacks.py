"""Speculative decoding with the caller's draft and target functions instead of models.

`CallbackDecoder.events` calls plain functions; `stream` and `generate` also asynchronous ones, on
the caller's event loop.
"""

import asyncio
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from collections.abc import Sequence as Tokens
from contextlib import aclosing
from dataclasses import dataclass, fields, replace

from engine.backends.callback import CallbackBackend, EventLoop, TargetCallback
from engine.configuration import (
    MAX_COUNT,
    MAX_DRAFT,
    ControllerName,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
)
from engine.errors import PresetError
from engine.events import Event, Finished, TokensCommitted
from engine.generation.session import Session
from engine.metrics import Metrics
from engine.model.chat_template import ChatTemplate
from engine.requests import Cancellation, GenerationRequest
from engine.speculation.predictors.base import DraftToken

Drafted = int | DraftToken
Drafts = Iterable[Drafted] | AsyncIterable[Drafted]
DraftCallback = Callable[[Tokens[int], int], Drafts | Awaitable[Drafts]]
"""Called with all tokens and the maximum draft length; returns the draft, best as a generator,
which is closed when the draft is long enough. The confidence of a plain number is unknown."""

OnToken = Callable[[int], Awaitable[None] | None]
"""Called with each committed token; an exception ends the reply."""

UNKNOWN_CONFIDENCE = 0.5


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """Event for the subscribers of a decoder."""

    before: SpeculationSettings
    after: SpeculationSettings
    changed: tuple[str, ...]
    """Names of the fields that differ."""


Subscriber = Callable[[SettingsChanged], None]


class CallbackDecoder:
    """Speculative decoding of a target function with a draft function.

    The tokens have the distribution of target and sampler: at temperature 0 and with `coupled`
    verification they equal those of the target without drafts. Each round calls the target once.
    The draft function runs in a thread of its own; if it raises, proposes invalid tokens or is
    often late, it is off for the reply, with the reason in `SpeculationChanged`.

    The controller's state and the metrics persist across calls until `reset`.
    """

    def __init__(
        self,
        draft: DraftCallback,
        target: TargetCallback,
        *,
        n_vocab: int,
        is_end: Callable[[int], bool],
        settings: SpeculationSettings | None = None,
        sampling: SamplingSettings | None = None,
        n_ctx: int = MAX_COUNT,
    ) -> None:
        """Create a decoder; calls no function yet.

        Args:
            draft: Proposes tokens.
            target: Computes logits.
            n_vocab: Tokens of the target: 0 to `n_vocab - 1`.
            is_end: Whether a token ends a text.
            settings: Of speculation; the predictor `off` disables drafts, any other uses `draft`.
            sampling: Sampling settings; None is greedy.
            n_ctx: Maximum tokens of prompt and reply.
        """
        self._loop = EventLoop()
        self._backend = CallbackBackend(target, self._loop, n_vocab, is_end, n_ctx)
        self._predictor = CallbackPredictor(draft, self._loop)
        self._settings = settings or SpeculationSettings()
        self._sampling = sampling or SamplingSettings()
        self._subscribers: list[Subscriber] = []
        self.metrics = Metrics()
        """Counts and times of all replies since the last reset."""
        self._session = self._new_session()

    @property
    def settings(self) -> SpeculationSettings:
        """The speculation settings."""
        return self._settings

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` at each change of the settings; returns a function that ends this."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def update_settings(self, **changes: object) -> SpeculationSettings:
        """Change settings by name, from the next round on.

        Raises:
            PresetError: there is no setting of that name.
        """
        names = tuple(each.name for each in fields(SpeculationSettings))
        if unknown := [name for name in changes if name not in names]:
            known = ", ".join(names)
            raise PresetError(f"unknown setting {unknown[0]}: the settings are {known}")
        before = self._settings
        # mypy cannot know which names are given.
        self._settings = replace(before, **changes)  # type: ignore[arg-type]
        self._session.set_speculation(self._own_settings())
        changed = tuple(n for n in names if getattr(before, n) != getattr(self._settings, n))
        if changed:
            for subscriber in tuple(self._subscribers):
                subscriber(SettingsChanged(before, self._settings, changed))
        return self._settings

    def reset(self) -> None:
        """Reset metrics and controller.

        Raises:
            EngineError: a reply is running.
        """
        self._session.close()
        self._session = self._new_session()
        self.metrics.reset()

    def events(
        self,
        prompt: Tokens[int],
        *,
        max_tokens: int,
        seed: int | None = None,
        cancellation: Cancellation | None = None,
    ) -> Generator[Event, None, None]:
        """The events of one reply as they happen; the last one is `Finished`.

        Args:
            prompt: At least one token.
            max_tokens: Maximum tokens to generate.
            seed: For temperatures above 0; None draws one.
            cancellation: Stops the reply from another thread.

        Raises:
            PresetError: the prompt is empty, or `max_tokens` is negative.
            TokenError: the prompt has a token outside the vocabulary.
            DecodeError: the target function returned no logits.
            EngineError: another reply is running.
        """
        if not prompt or max_tokens < 0:
            raise PresetError(
                f"the prompt has {len(prompt)} tokens and max_tokens is {max_tokens}: pass "
                "at least one prompt token, and a max_tokens of 0 or more"
            )
        self._predictor.n_end = len(prompt) + max_tokens - 1
        request = GenerationRequest(
            prompt_tokens=tuple(prompt),
            sampling=self._sampling,
            max_tokens=max_tokens,
            seed=seed,
        )
        for event in self._session.generate(request, cancellation or Cancellation()):
            self.metrics.observe(event)
            yield event

    def decode(
        self, prompt: Tokens[int], *, max_tokens: int, seed: int | None = None
    ) -> tuple[int, ...]:
        """Generated tokens without the end token; raises as `events`."""
        tokens: tuple[int, ...] = ()
        for event in self.events(prompt, max_tokens=max_tokens, seed=seed):
            if isinstance(event, Finished):
                tokens = event.token_ids
        return tokens

    async def stream(
        self, prompt: Tokens[int], *, max_tokens: int, seed: int | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of a reply, as `events` does, in an asyncio event loop.

        Plain functions run in another thread. Cancelling the task or closing the iterator stops
        the reply.
        """
        cancellation = Cancellation()
        events = self.events(prompt, max_tokens=max_tokens, seed=seed, cancellation=cancellation)
        self._loop.begin(asyncio.get_running_loop())
        step: asyncio.Task[Event | None] | None = None
        try:
            while True:
                step = asyncio.create_task(asyncio.to_thread(next, events, None))
                event = await asyncio.shield(step)
                if event is None:
                    return
                yield event
        finally:
            cancellation.cancel()
            self._loop.end()
            if step is not None:
                await asyncio.wait((step,))
            await asyncio.to_thread(events.close)

    async def generate(
        self,
        prompt: Tokens[int],
        *,
        max_tokens: int,
        seed: int | None = None,
        on_token: OnToken | None = None,
    ) -> Finished:
        """Generate a reply, calling `on_token` for its tokens; raises as `events` and it."""
        finished: Finished | None = None
        async with aclosing(self.stream(prompt, max_tokens=max_tokens, seed=seed)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    finished = event
                elif on_token is not None and isinstance(event, TokensCommitted):
                    for committed in event.tokens:
                        waiting = on_token(committed.token)
                        if waiting is not None:
                            await waiting
        assert finished is not None
        return finished

    def _new_session(self) -> Session:
        self._backend.clear_abort()  # left by a cancelled reply
        return Session(
            self._backend,
            ChatTemplate(""),
            self._own_settings(),
            custom_predictor=self._predictor,
        )

    def _own_settings(self) -> SpeculationSettings:
        """The session's settings; the user's function replaces any predictor but `off`."""
        is_fixed = self._settings.controller is ControllerName.FIXED
        self._predictor.longest = self._settings.n_draft if is_fixed else MAX_DRAFT
        if self._settings.predictor is PredictorName.OFF:
            return self._settings
        return replace(self._settings, predictor=PredictorName.CUSTOM)


class CallbackPredictor:
    """A predictor that calls a draft function."""

    name = "callback"

    def __init__(self, draft: DraftCallback, loop: EventLoop) -> None:
        self._draft, self._loop = draft, loop
        self._tokens: list[int] = []
        self.n_end = MAX_COUNT
        """Maximum tokens including a draft."""
        self.longest = MAX_DRAFT
        """Maximum draft length."""

    def reset(self, history: Tokens[int]) -> None:
        self._tokens = list(history)

    def commit(self, tokens: Tokens[int]) -> None:
        self._tokens.extend(tokens)

    def propose(self) -> Iterator[DraftToken]:
        n_wanted = min(self.longest, self.n_end - len(self._tokens))
        if not self._tokens or n_wanted <= 0:
            return
        given = self._draft(tuple(self._tokens), n_wanted)
        draft: Drafts = self._loop.outcome(given) if inspect.isawaitable(given) else given
        for drafted in self._loop.each(draft):
            if isinstance(drafted, DraftToken):
                yield drafted
            else:
                yield DraftToken(drafted, UNKNOWN_CONFIDENCE)
