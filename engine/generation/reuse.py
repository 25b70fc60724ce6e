"""Why a prompt was read again: it is held against the line that its chat had before."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, replace

from engine.backends.base import Vocabulary, common_prefix
from engine.cache.recall import MIN_GAIN, Recalled
from engine.configuration import Adapter
from engine.events import PromptReady, ReadCause
from engine.generation.prompt import Prompt, may_think, text_of_tokens
from engine.generation.reasoning import MARKERS, Thought
from engine.requests import GenerationRequest, Message

MAX_LINES = 64
MOST_TOKENS = 1 << 20
"""Lines and tokens that are remembered; the line used longest ago goes first."""
N_OPENING = 16
"""Tokens that a template may open the thinking of a reply with."""
N_SHOWN = 8
"""Tokens that are shown of a difference, and before it."""


@dataclass(frozen=True, slots=True)
class LastReply:
    """What a chat's last reply was made of, and the reply."""

    tokens: "array[int]"
    """Those that were computed: the prompt's and the reply's but its last."""
    n_prompt: int
    messages: tuple[int, ...]
    """A digest of each message, its role and text."""
    reply: int
    """A digest of the reply as a message."""
    thinks: bool
    adapters: tuple[Adapter, ...] | None


class LastLines:
    """The last line of each owner, since the model was loaded."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lines: OrderedDict[str, LastReply] = OrderedDict()

    def keep(
        self, request: GenerationRequest, tokens: Tokens[int], n_prompt: int, text: str
    ) -> None:
        """Remember what a reply was made of, as it ended.

        Args:
            request: What was asked; one that is nobody's is not remembered.
            tokens: The prompt's and the reply's; the last one was never computed.
            n_prompt: Tokens before the reply.
            text: The reply.
        """
        if not request.owner:
            return
        self._lines.pop(request.owner, None)
        self._lines[request.owner] = LastReply(
            array("i", tokens[:-1]),
            n_prompt,
            _digests(request.messages),
            _digest(Message("assistant", text)),
            may_think(request),
            request.adapters,
        )
        while len(self._lines) > 1 and self._is_full:
            self._lines.popitem(last=False)

    @property
    def _is_full(self) -> bool:
        n_tokens = sum(len(line.tokens) for line in self._lines.values())
        return len(self._lines) > MAX_LINES or n_tokens > MOST_TOKENS

    def found(self, request: GenerationRequest, prompt: Prompt, recalled: Recalled) -> PromptReady:
        """What was found of a prompt, and why it was not more; nothing is timed yet.

        Args:
            request: What is asked.
            prompt: Its tokens; the last one is computed in any case.
            recalled: What was found of it.
        """
        tokens, line = prompt.tokens, self._lines.get(request.owner)
        found = PromptReady(
            len(tokens),
            n_hot=recalled.n_hot,
            n_copied=recalled.n_copied,
            n_warm=recalled.n_warm,
            n_cold=recalled.n_cold,
            restore_s=recalled.restore_s,
            note=prompt.note,
        )
        if line is None:
            return replace(found, cause=ReadCause.FIRST)
        n_common = common_prefix(line.tokens, tokens[:-1])
        found = replace(
            found, n_common=n_common, miss_cause=_why_missed(line, request, recalled, n_common)
        )
        if n_common == min(len(line.tokens), len(tokens) - 1):
            return found
        cause, changed = self._why(line, request, prompt, n_common)
        return replace(
            found,
            cause=cause,
            changed=changed,
            text_before=self._text(tokens[max(n_common - N_SHOWN, 0) : n_common]),
            old_text=self._text(line.tokens[n_common : n_common + N_SHOWN]),
            new_text=self._text(tokens[n_common : n_common + N_SHOWN]),
        )

    def _why(
        self, line: LastReply, request: GenerationRequest, prompt: Prompt, n_common: int
    ) -> tuple[ReadCause, str]:
        """Why a prompt differs from a line, and which message does, where one does."""
        now, messages = _digests(request.messages), request.messages
        at = common_prefix(line.messages, now)
        if at == len(now) and n_common >= len(prompt.tokens) - len(prompt.continues):
            return _edited((*messages, Message("assistant", "")), at)
        if at < len(line.messages):
            return (ReadCause.TRIMMED, "") if request.is_trimmed else _edited(messages, at)
        if at < len(now) and now[at] != line.reply:
            return _edited(messages, at)
        if line.thinks is not may_think(request):
            return ReadCause.SETTINGS, "thinking"
        if at < len(now) and self._is_in_thought(line, request.messages[at], n_common):
            return ReadCause.REASONING, ""
        return ReadCause.TEMPLATE, ""

    def _is_in_thought(self, line: LastReply, reply: Message, n_common: int) -> bool:
        """Whether a line leaves a prompt within what was thought for its reply."""
        thought = Thought.of(reply.content)
        is_before = n_common < line.n_prompt - N_OPENING
        if thought is None or not thought.text or is_before:
            return False
        since = self._text(line.tokens[line.n_prompt : max(n_common, line.n_prompt)])
        return not any(markers.end in since for markers in MARKERS)

    def _text(self, tokens: Tokens[int]) -> str:
        return text_of_tokens(tokens, self._vocabulary, special=True)


def _digest(message: Message) -> int:
    return hash((message.role, message.content))


def _digests(messages: Tokens[Message]) -> tuple[int, ...]:
    return tuple(map(_digest, messages))


def _edited(messages: Tokens[Message], at: int) -> tuple[ReadCause, str]:
    """The message that reads otherwise, in words; a chat that is shorter now ends there."""
    if at >= len(messages):
        return ReadCause.EDITED, "the end of the chat"
    if messages[at].role == "system":
        return ReadCause.EDITED, "the system prompt"
    whose = "question" if messages[at].role == "user" else "reply"
    number = sum(message.role == messages[at].role for message in messages[: at + 1])
    return ReadCause.EDITED, f"{whose} {number}"


def _why_missed(
    line: LastReply, request: GenerationRequest, recalled: Recalled, n_common: int
) -> ReadCause | None:
    """Why less was found than is the same; None where it is not, or by a few tokens only."""
    if n_common - recalled.n_reused < MIN_GAIN:
        return None
    if line.adapters != request.adapters:
        return ReadCause.SETTINGS
    return ReadCause.UNCUT if recalled.n_uncut > recalled.n_reused else ReadCause.EVICTED
