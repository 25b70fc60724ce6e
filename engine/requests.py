"""What a session is asked to do."""

from dataclasses import dataclass, field
from typing import Literal

from engine.configuration import SamplingSettings

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
