"""Explains why a prompt was recomputed, by comparing it with the chat's previous tokens."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, replace

from engine.backends.base import Vocabulary, common_prefix
from engine.cache.recall import MIN_GAIN, Recalled
from engine.configuration import Adapter
from engine.events import PromptReady, ReadCause
from engine.generation.prompt import Prompt, may_think, text_of_tokens
from engine.generation.reasoning import Thought
from engine.requests import GenerationRequest, Message

MAX_REPLIES = 64
MAX_TOKENS = 1 << 20
"""Maximum stored replies and tokens; the least recently used are dropped first."""
N_OPENING = 16
"""Maximum tokens with which a template opens the thinking of a reply."""
N_SHOWN = 8
"""Tokens shown of a difference, and before it."""


@dataclass(frozen=True, slots=True)
class LastReply:
    """A chat's last request and reply."""

    tokens: "array[int]"
    """Computed tokens of prompt and reply, without the last one."""
    n_prompt: int
    messages: tuple[int, ...]
    """Hash of each message's role and text."""
    reply: int
    """Hash of the reply as a message."""
    thinks: bool
    adapters: tuple[Adapter, ...] | None


class LastReplies:
    """The last reply of each owner since the model was loaded."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._last: OrderedDict[str, LastReply] = OrderedDict()

    def store(
        self, request: GenerationRequest, tokens: Tokens[int], n_prompt: int, text: str
    ) -> None:
        """Store an ended reply unless it has no owner; its last token was never computed."""
        if not request.owner:
            return
        self._last.pop(request.owner, None)
        self._last[request.owner] = LastReply(
            array("i", tokens[:-1]),
            n_prompt,
            _digests(request.messages),
            _digest(Message("assistant", text)),
            may_think(request),
            request.adapters,
        )
        n_tokens = sum(len(each.tokens) for each in self._last.values())
        while len(self._last) > 1 and (len(self._last) > MAX_REPLIES or n_tokens > MAX_TOKENS):
            _, oldest = self._last.popitem(last=False)
            n_tokens -= len(oldest.tokens)

    def found(self, request: GenerationRequest, prompt: Prompt, recalled: Recalled) -> PromptReady:
        """The reuse of a prompt and why it was not longer, without times."""
        tokens, last = prompt.tokens, self._last.get(request.owner)
        found = PromptReady(
            len(tokens),
            n_hot=recalled.n_hot,
            n_copied=recalled.n_copied,
            n_warm=recalled.n_warm,
            n_cold=recalled.n_cold,
            restore_s=recalled.restore_s,
            note=prompt.note,
        )
        if last is None:
            return replace(found, cause=ReadCause.FIRST)
        n_common = common_prefix(last.tokens, tokens[:-1])
        found = replace(
            found, n_common=n_common, miss_cause=_why_missed(last, request, recalled, n_common)
        )
        if n_common == min(len(last.tokens), len(tokens) - 1):
            return found
        return replace(
            found,
            cause=_cause(last, request, n_common),
            text_before=self._text(tokens[max(n_common - N_SHOWN, 0) : n_common]),
            old_text=self._text(last.tokens[n_common : n_common + N_SHOWN]),
            new_text=self._text(tokens[n_common : n_common + N_SHOWN]),
        )

    def _text(self, tokens: Tokens[int]) -> str:
        return text_of_tokens(tokens, self._vocabulary, special=True)


def _digest(message: Message) -> int:
    return hash((message.role, message.content))


def _digests(messages: Tokens[Message]) -> tuple[int, ...]:
    return tuple(map(_digest, messages))


def _cause(last: LastReply, request: GenerationRequest, n_common: int) -> ReadCause:
    """Why a prompt differs from the last reply's tokens after `n_common` of them."""
    if request.is_trimmed:
        return ReadCause.TRIMMED
    earlier, now = (*last.messages, last.reply), _digests(request.messages)
    if common_prefix(earlier, now) < min(len(earlier), len(now)) or len(now) < len(last.messages):
        return ReadCause.EDITED
    if last.thinks is not may_think(request):
        return ReadCause.SETTINGS
    if len(now) == len(last.messages):  # the same question
        return ReadCause.TEMPLATE if n_common < last.n_prompt else ReadCause.EDITED
    is_thought = Thought.of(request.messages[len(last.messages)].content) is not None
    is_in_reply = n_common >= last.n_prompt - N_OPENING
    return ReadCause.REASONING if is_thought and is_in_reply else ReadCause.TEMPLATE


def _why_missed(
    last: LastReply, request: GenerationRequest, recalled: Recalled, n_common: int
) -> ReadCause | None:
    """Why fewer tokens were reused than are equal; None if at most a few are missing."""
    if n_common - recalled.n_reused < MIN_GAIN:
        return None
    if last.adapters != request.adapters:
        return ReadCause.SETTINGS
    return ReadCause.UNCUT if recalled.n_uncut > recalled.n_reused else ReadCause.EVICTED
