"""The thinking of one reply: how far it is, and when it has to end.

A budget in tokens closes it, and so does a loop: what a model writes again and again leads nowhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.events import Thinking
from engine.generation.reasoning import Reasoning
from engine.generation.reply import Reply

LOOK_EVERY = 32
"""Tokens of thinking between two looks for a loop."""
USED_UP = "it reached its limit of {:,} tokens"
IN_A_LOOP = "it repeated itself"


@dataclass(slots=True)
class ThinkingWatch:
    """Follows the text of one reply; `is_open` while it thinks."""

    reasoning: Reasoning
    budget: int
    """Tokens; 0 does not bound it."""
    clock: Callable[[], float]
    """Seconds since the reply was asked for."""
    is_open: bool = False
    is_decided: bool = False
    """Whether the reply was seen to think, or to answer at once."""
    n_tokens: int = 0
    elapsed_s: float = 0.0
    told: Thinking | None = None
    """How far it was at the last round; None where there was no thinking yet."""
    _since: float | None = None
    _looked_at: int = 0
    _n_chars: int = 0
    """Of the text, those in which the end does not stand."""

    def take(self, reply: Reply, n_new: int) -> Thinking | None:
        """Look at what a round added; gives how far the thinking is, if there is any.

        Args:
            reply: With the round's tokens and text.
            n_new: Those tokens.
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
            return self._told(is_over=True)
        self._n_chars = len(text)
        return self._told() if self.is_open else None

    def n_left(self) -> int | None:
        """Tokens that it may still have; None where nothing bounds it."""
        is_bounded = self.budget and (self.is_open or not self.is_decided)
        return max(self.budget - self.n_tokens, 0) if is_bounded else None

    def reason_to_close(self, reply: Reply) -> str | None:
        """Why the thinking has to end now, if it has to."""
        if not self.is_open:
            return None
        if self.n_left() == 0:
            return USED_UP.format(self.budget)
        if self.n_tokens - self._looked_at < LOOK_EVERY:
            return None
        self._looked_at = self.n_tokens
        return IN_A_LOOP if has_loop(reply.generated_tokens[-self.n_tokens :]) else None

    def close(self, note: str, n_tokens: int) -> Thinking:
        """Take that the engine has written the end."""
        self.is_open = False
        self.n_tokens += n_tokens
        return self._told(is_over=True, note=note)

    def _decide(self, text: str) -> None:
        begun, start = text.lstrip(), self.reasoning.markers.start
        self.is_open = begun.startswith(start)
        self.is_decided = self.is_open or not start.startswith(begun)

    def _told(self, *, is_over: bool = False, note: str | None = None) -> Thinking:
        self.told = Thinking(self.n_tokens, self.elapsed_s, is_over, note)
        return self.told


def has_loop(tokens: Sequence[int], *, longest: int = 256, times: int = 4, least: int = 96) -> bool:
    """Whether tokens end with one stretch again and again.

    Args:
        tokens: What was generated.
        longest: Tokens of the longest stretch that is looked for.
        times: How often it has to stand there.
        least: Tokens that all of them have together at least.
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
