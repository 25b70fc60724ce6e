"""One reply of a comparison while it is made and when it is done."""

from collections.abc import Callable

from app.chat.reply import Piece, pieces_of
from app.chat.snapshot import Tally, tally_of
from app.compare.side import Side
from engine.events import (
    Event,
    Finished,
    PromptReady,
    RoundFinished,
    SpeculationChanged,
    TokensCommitted,
)


class Answer:
    """Collects the text, the counts and the clock of one reply."""

    def __init__(self, side: Side, clock: Callable[[], float]) -> None:
        self.side = side
        self.pieces: list[Piece] = []
        self.tally = Tally()
        self.note: str | None = None
        """Why it drafts in another way than its side says, or not at all."""
        self.finished: Finished | None = None
        self.margins: list[float | None] = []
        """By how many logits each token was ahead of the next best."""
        self._clock = clock
        self._began: float | None = None
        self._ended: float | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        if self.finished is not None:
            return self.finished.text
        return "".join(piece.text for piece in self.pieces)

    @property
    def elapsed_s(self) -> float | None:
        """Seconds since the prompt was read; of a finished reply, those that its rounds took."""
        if self.finished is not None:
            return self.finished.stats.decode_s
        if self._began is None:
            return None
        return (self._ended or self._clock()) - self._began

    @property
    def decode_tps(self) -> float | None:
        """Tokens a second without the prompt."""
        if self.finished is not None:
            return self.finished.stats.decode_tps
        elapsed_s = self.elapsed_s
        if not elapsed_s or not self.tally.n_emitted:
            return None
        return self.tally.n_emitted / elapsed_s

    def take(self, event: Event) -> None:
        """Take in one event of this reply."""
        match event:
            case PromptReady():
                self._began = self._clock()
            case TokensCommitted():
                self.pieces += pieces_of(event)
                self.margins += [token.margin for token in event.tokens]
            case RoundFinished():
                self.tally = self.tally.with_round(event)
            case SpeculationChanged(note=note):
                self.note = note
            case Finished():
                self.finished = event
                self.tally = tally_of(event.stats)
            case _:
                pass

    def cut(self) -> None:
        """Stop the clock of a reply that did not come to its end."""
        self._ended = self._ended or self._clock()
