"""What a reply is asked for with, and how it is stopped."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from engine.configuration import Adapter, SamplingSettings, SpeculationSettings
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
    thought: str = ""
    """What an assistant's message was thought out with, where the content does not have it."""

    def __reduce__(self) -> tuple[object, ...]:
        # A chat goes through the engine's pipe with every turn: this takes a tenth of the time
        # that a frozen dataclass with slots takes by itself.
        fields = (self.role, self.content, self.token_ids, self.vocabulary_id, self.thought)
        return Message, fields


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a reply may be; `engine.grammar.source` reads and checks it."""

    text: str
    is_schema: bool = True
    """Whether it is a JSON schema, else a grammar in GBNF or Lark."""
    name: str = "of the request"
    """What messages call it, such as the name of its file."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One reply to make.

    With `raw_prompt` the text is used as it is, without a chat template, and with `prompt_tokens`
    these are the prompt; `messages` is empty then.
    """

    messages: tuple[Message, ...] = ()
    raw_prompt: str | None = None
    prompt_tokens: tuple[int, ...] | None = None
    """Ids of the model's vocabulary, which stand for themselves: no BOS token is put before them.
    """
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    max_tokens: int | None = None
    """Tokens to generate at most; None is until the context is full."""
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    """What the reply may be; None leaves it to the file that `sampling` names, if it names one."""
    seed: int | None = None
    """Seed of the noise; None draws a fresh one. With a seed the first token is computed as it will
    be when the prompt is in the cache, which takes a pass more and makes the reply repeatable."""
    owner: str = ""
    """Whose tokens these are, such as `chat:12`: names kept states; empty names nobody."""
    continues: tuple[int, ...] = ()
    """Ids of a reply that was cut: it goes on behind them, and they are part of `Finished`."""
    continues_text: str = ""
    """The text that the reply goes on behind where `continues` may not be its ids, as after an edit
    or under another model: those that still spell its start are used, the rest is tokenised."""
    adapters: tuple[Adapter, ...] | None = None
    """Low-rank adapters that the reply is made with; None is those that the model was loaded with.
    What is computed with others is kept in the context only."""
    is_trimmed: bool = False
    """Whether the oldest turns were dropped from `messages`: the cause of a new prefill."""
    speculation: SpeculationSettings | None = None
    """How it is drafted for, whatever the session is set to meanwhile; None is as that is set."""

    reads_only: bool = False
    """Whether nothing is said, and of the prompt that is read which stays whatever is asked behind
    `messages`: the next request finds it in the cache."""

    @classmethod
    def preload(cls, messages: tuple[Message, ...], owner: str = "") -> "GenerationRequest":
        """Read the start of a chat, such as its system prompt, before the next question is there.

        The reply is empty and ends with `FinishReason.LENGTH`.
        """
        return cls(messages, max_tokens=0, owner=owner, reads_only=True)

    @property
    def has_template(self) -> bool:
        """Whether the model's chat template makes the prompt."""
        return self.raw_prompt is None and self.prompt_tokens is None


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
            raise DecodeAborted("stopped between two decode steps")

    def attach(self, on_cancel: Callable[[], None]) -> None:
        """Name what interrupts a running decode; who attaches asks `is_cancelled` before each."""
        with self._lock:
            self._on_cancel = on_cancel

    def detach(self) -> None:
        """The reply is over: a late cancel must not stop the next one."""
        with self._lock:
            self._on_cancel = None
