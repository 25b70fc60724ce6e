"""What a reply is asked for with, and how it is stopped."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from engine.configuration import SamplingSettings, SpeculationSettings
from engine.errors import DecodeAborted

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat.

    `token_ids` are those that an assistant's message was generated as. They are used again as long
    as they still spell `content` and `vocabulary_id` is that of the loaded model.
    """

    role: Role
    content: str
    token_ids: tuple[int, ...] | None = None
    vocabulary_id: str | None = None

    def __reduce__(self) -> tuple[object, ...]:
        # A chat goes through the engine's pipe with every turn: this takes a tenth of the time
        # that a frozen dataclass with slots takes by itself.
        return Message, (self.role, self.content, self.token_ids, self.vocabulary_id)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One reply to make.

    With `raw_prompt` the text is used as it is, without a chat template, and `messages` is empty.
    """

    messages: tuple[Message, ...] = ()
    raw_prompt: str | None = None
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    max_tokens: int | None = None
    """Tokens to generate at most; None is until the context is full."""
    stop: tuple[str, ...] = ()
    seed: int | None = None
    """Seed of the noise; None draws a fresh one. With a seed the first token is computed as it will
    be when the prompt is in the cache, which takes a pass more and makes the reply repeatable."""
    past_replies: tuple[tuple[int, ...], ...] = ()
    """What the model said before, oldest first, as token ids of its vocabulary: material for drafts
    and no part of the prompt."""
    owner: str = ""
    """Whose tokens these are, such as `chat:12`: names kept states; empty names nobody."""
    continues: tuple[int, ...] = ()
    """Ids of a reply that was cut: it goes on behind them, and they are part of `Finished`."""
    may_shift: bool = False
    """Whether tokens may be dropped from the middle of what is held where the prompt dropped them,
    without computing the rest anew; the text is then not to the bit what a new start would give."""
    speculation: SpeculationSettings | None = None
    """How it is drafted for, whatever the session is set to meanwhile; None is as that is set."""


class Cancellation:
    """Belongs to one reply; cancelling is final, and may come before the reply has started."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._on_cancel: Callable[[], None] | None = None

    @property
    def is_cancelled(self) -> bool:
        return self._event.is_set()

    def cancel(self) -> None:
        """Stop the reply; the running decode is aborted."""
        with self._lock:
            self._event.set()
            if self._on_cancel is not None:
                self._on_cancel()

    def check(self) -> None:
        """End the reply between two steps if it was cancelled.

        Raises:
            DecodeAborted: it was.
        """
        if self.is_cancelled:
            raise DecodeAborted("stopped between two steps")

    def attach(self, on_cancel: Callable[[], None]) -> None:
        """Name what interrupts a running decode; who attaches asks `is_cancelled` before each."""
        with self._lock:
            self._on_cancel = on_cancel

    def detach(self) -> None:
        """The reply is over: a late cancel must not stop the next one."""
        with self._lock:
            self._on_cancel = None
