"""The thinking of one reply: its progress, and when it must end.

It is ended at a token budget, or when the model repeats itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.events import Thinking
from engine.generation.reasoning import Reasoning
from engine.generation.reply import Reply

CHECK_EVERY = 32
"""Tokens of thinking between two checks for a loop."""
USED_UP = "it reached its limit of {:,} tokens"
IN_A_LOOP = "it repeated itself"


@dataclass(slots=True)
class ThinkingWatch:
    """Follows the text of one reply; `is_open` while it thinks."""

    reasoning: Reasoning
    budget: int
    """Maximum tokens; 0 is unlimited."""
    clock: Callable[[], float]
    """Seconds since the request."""
    is_open: bool = False
    is_decided: bool = False
    """Whether it is known if the reply thinks."""
    n_tokens: int = 0
    elapsed_s: float = 0.0
    last: Thinking | None = None
    """The last event; None before any thinking."""
    _since: float | None = None
    _checked_at: int = 0
    _n_chars: int = 0
    """Characters already searched for the end marker."""

    def update(self, reply: Reply, n_new: int) -> Thinking | None:
        """Process the tokens of a round; return the thinking's progress, if any.

        Args:
            reply: The reply with the round's tokens and text.
            n_new: Number of the round's tokens.
        """
        if self.is_decided and not self.is_open:
            return None
        now = self.clock()
        self._since = now if self._since is None else self._since
        text = reply.text.text
        if not self.is_decided:
            self._decide(text)
        self.n_tokens += n_new
        self.elapsed_s = now - self._since
        end = self.reasoning.markers.end
        if self.is_open and end in text[max(self._n_chars - len(end), 0) :]:
            self.is_open = False
            return self._event(is_over=True)
        self._n_chars = len(text)
        return self._event() if self.is_open else None

    def n_left(self) -> int | None:
        """Remaining tokens of the budget; None if unlimited."""
        is_bounded = self.budget and (self.is_open or not self.is_decided)
        return max(self.budget - self.n_tokens, 0) if is_bounded else None

    def reason_to_close(self, reply: Reply) -> str | None:
        """Why the thinking must end now; None if it need not."""
        if not self.is_open:
            return None
        if self.n_left() == 0:
            return USED_UP.format(self.budget)
        if self.n_tokens - self._checked_at < CHECK_EVERY:
            return None
        self._checked_at = self.n_tokens
        return IN_A_LOOP if has_loop(reply.generated_tokens[-self.n_tokens :]) else None

    def close(self, note: str, n_tokens: int) -> Thinking:
        """Record that the engine has written the end marker."""
        self.is_open = False
        self.n_tokens += n_tokens
        return self._event(is_over=True, note=note)

    def _decide(self, text: str) -> None:
        begun, start = text.lstrip(), self.reasoning.markers.start
        self.is_open = begun.startswith(start)
        self.is_decided = self.is_open or not start.startswith(begun)

    def _event(self, *, is_over: bool = False, note: str | None = None) -> Thinking:
        self.last = Thinking(self.n_tokens, self.elapsed_s, is_over, note)
        return self.last


def has_loop(tokens: Sequence[int], *, longest: int = 256, times: int = 4, least: int = 96) -> bool:
    """Whether tokens end with a repeated sequence.

    Args:
        tokens: Generated tokens.
        longest: Maximum length of the sequence.
        times: Minimum number of repetitions.
        least: Minimum total length of the repetitions.
    """
    n = len(tokens)
    for period in range(1, min(longest, n // times) + 1):
        length = max(times * period, least)
        if length > n or tokens[n - 1] != tokens[n - 1 - period]:
            continue
        tail = tokens[n - length :]
        if tail[period:] == tail[:-period]:
            return True
    return False
