"""What every side is asked for: one reply to the same token ids."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from speed_peers.catalogue import Mode
from speed_peers.records import Reply


@dataclass(frozen=True, slots=True)
class Setup:
    """What all sides have in common."""

    model: Path
    draft: Path | None
    n_ctx: int
    n_threads: int | None
    """None leaves it to each library."""
    end_tokens: tuple[int, ...]
    """Ids that end a turn, for peers that read no such thing from the file."""


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt, as a user's message and as the ids that kvchat makes of it."""

    set_name: str
    name: str
    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen; temperature 0 is greedy, nothing else cuts the distribution."""

    temperature: float
    max_tokens: int
    seed: int
    max_s: float | None = None
    """When libraries leave a reply, in seconds from its first token; other sides do not look."""


class Side(Protocol):
    """A program that answers; it stays up between questions."""

    versions: dict[str, str]

    def ask(self, mode: Mode, question: Question, sampling: Sampling) -> Reply:
        """A reply of one mode.

        Raises:
            PeerError: the program failed, with what it said.
        """

    def close(self) -> None:
        """End its processes."""
