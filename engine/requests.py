"""Requests for replies, and their cancellation."""

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

    `token_ids` are the generated ids of an assistant's message. They are reused if they detokenize
    to `content` and `vocabulary_id` is that of the loaded model.
    """

    role: Role
    content: str
    token_ids: tuple[int, ...] | None = None
    vocabulary_id: str | None = None
    thought: str = ""
    """Reasoning of an assistant's message, unless the content has it."""

    def __reduce__(self) -> tuple[object, ...]:
        # Every turn sends the whole chat through the engine's pipe: this takes a tenth of the time
        # of the default pickling of a frozen dataclass with slots.
        fields = (self.role, self.content, self.token_ids, self.vocabulary_id, self.thought)
        return Message, fields


@dataclass(frozen=True, slots=True)
class Grammar:
    """A schema or grammar of a reply; `engine.grammar.source` parses it."""

    text: str
    is_schema: bool = True
    """Whether the text is a JSON schema, else a GBNF or Lark grammar."""
    name: str = "of the request"
    """Name in messages, such as the file name."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request for one reply.

    The prompt is `messages` rendered by the chat template, or `raw_prompt` as plain text, or
    `prompt_tokens`.
    """

    messages: tuple[Message, ...] = ()
    raw_prompt: str | None = None
    prompt_tokens: tuple[int, ...] | None = None
    """Token ids of the prompt; no BOS token is added."""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    max_tokens: int | None = None
    """Maximum tokens to generate; None is until the context is full."""
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    """Schema or grammar of the reply; None uses the file in `sampling`, if any."""
    seed: int | None = None
    """Sampling seed; None draws a new one. With a seed the first token is computed as if the prompt
    was cached, which costs one more pass and makes the reply reproducible."""
    owner: str = ""
    """Owner of the saved states, such as `chat:12`; empty is none."""
    continues: tuple[int, ...] = ()
    """Ids of an interrupted reply to continue; `Finished` includes them."""
    continues_text: str = ""
    """Text of the reply to continue, if `continues` may not match it, as after an edit or with
    another model: ids that match its start are reused, the rest is tokenised."""
    adapters: tuple[Adapter, ...] | None = None
    """Low-rank adapters of the reply; None is those that the model was loaded with. States computed
    with other adapters are never saved outside the context."""
    is_trimmed: bool = False
    """Whether the oldest turns were dropped from `messages`, which causes a new prefill."""
    speculation: SpeculationSettings | None = None
    """Speculation settings of this reply; None uses those of the session."""

    reads_only: bool = False
    """Whether to only prefill the part of the prompt that does not depend on the next message; no
    token is generated."""

    @classmethod
    def preload(cls, messages: tuple[Message, ...], owner: str = "") -> "GenerationRequest":
        """A request to prefill the start of a chat, such as its system prompt, in advance.

        The reply is empty and ends with `FinishReason.LENGTH`.
        """
        return cls(messages, max_tokens=0, owner=owner, reads_only=True)

    @property
    def has_template(self) -> bool:
        """Whether the prompt is rendered by the chat template."""
        return self.raw_prompt is None and self.prompt_tokens is None


class Cancellation:
    """Cancellation of one reply; final, and possible before the reply starts."""

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
        """Check for a cancellation between two steps.

        Raises:
            DecodeAborted: the reply was cancelled.
        """
        if self.is_cancelled:
            raise DecodeAborted("the reply was stopped between two decode steps")

    def attach(self, on_cancel: Callable[[], None]) -> None:
        """Set the function that interrupts a running decode; check `is_cancelled` before each."""
        with self._lock:
            self._on_cancel = on_cancel

    def detach(self) -> None:
        """Remove the function after the reply: a late cancel must not stop the next one."""
        with self._lock:
            self._on_cancel = None
