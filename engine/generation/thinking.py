"""The thinking of one reply: its progress, and when its budget is used up."""

from collections.abc import Callable

from engine.events import Thinking
from engine.generation.reasoning import Reasoning


class ThinkingWatch:
    """Follows the text of one reply.

    Args:
        reasoning: The model's thinking format; None if the reply has none.
        budget: Maximum tokens; 0 is unlimited.
        clock: Seconds since the request.
    """

    def __init__(
        self, reasoning: Reasoning | None, budget: int, clock: Callable[[], float]
    ) -> None:
        self.last: Thinking | None = None
        """The last event; None before any thinking."""
        self._reasoning, self._budget, self._clock = reasoning, budget, clock
        self._is_open = False
        self._is_decided = reasoning is None
        """Whether it has been decided if the reply begins with thinking."""
        self._n_tokens = self._n_searched = 0
        self._since_s: float | None = None

    def update(self, text: str, n_new: int) -> Thinking | None:
        """The progress of the thinking after a round of `n_new` tokens; None if there is none."""
        if self._reasoning is None or (self._is_decided and not self._is_open):
            return None
        self._since_s = self._clock() if self._since_s is None else self._since_s
        if not self._is_decided:
            begun, start = text.lstrip(), self._reasoning.markers.start
            self._is_open = begun.startswith(start)
            self._is_decided = self._is_open or not start.startswith(begun)
        self._n_tokens += n_new
        if not self._is_open:
            return None
        end = self._reasoning.markers.end
        self._is_open = text.find(end, max(self._n_searched - len(end), 0)) < 0
        self._n_searched = len(text)
        return self._event()

    def n_left(self) -> int | None:
        """Remaining tokens of the budget; None if unlimited."""
        is_bounded = self._budget and (self._is_open or not self._is_decided)
        return max(self._budget - self._n_tokens, 0) if is_bounded else None

    @property
    def closing(self) -> str | None:
        """The text that must end the thinking now; None if the budget is not used up."""
        is_used_up = self._is_open and self.n_left() == 0
        return self._reasoning.closing if self._reasoning and is_used_up else None

    def close(self, n_tokens: int) -> Thinking:
        """Record the end marker, which the engine has written."""
        self._is_open = False
        self._n_tokens += n_tokens
        return self._event(f"it reached its limit of {self._budget:,} tokens")

    def _event(self, note: str | None = None) -> Thinking:
        elapsed_s = self._clock() - (self._since_s or 0.0)
        self.last = Thinking(self._n_tokens, elapsed_s, not self._is_open, note)
        return self.last
