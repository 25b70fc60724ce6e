"""How fast models run on this machine, as tune, benchmarks and chats measured it."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from engine.builds import installed_build, machine
from engine.files import NewestEntries

VERSION = 2
MOST_MODELS = 256
MOST_TPS = 1e7


Measured = Literal["tune", "bench", "chats"]
"""What measured a speed: `kvchat tune`, `kvchat bench`, or replies in chats."""


@dataclass(frozen=True, slots=True)
class ModelSpeed:
    """What one model does here without drafts, in tokens a second."""

    decode_tps: float
    """Written in a short chat."""
    deep_tps: float | None
    """Written behind `n_deep` tokens; None where only short chats were measured."""
    n_deep: int | None
    prompt_tps: float | None
    """Read of a prompt."""
    preset: str
    """Name of the preset that it was measured with; empty for the usual settings."""
    measured: str
    """Date in ISO 8601."""
    by: Measured = "tune"
    n_replies: int | None = None
    """Replies that it is the median of; None where runs were made for it."""

    @property
    def is_sane(self) -> bool:
        """Whether no figure is beyond what a machine does."""
        known = (self.decode_tps, self.deep_tps, self.prompt_tps)
        is_sane = all(0 < rate < MOST_TPS for rate in known if rate is not None)
        return is_sane and (self.n_deep is None or self.n_deep > 0)


Kept = tuple[ModelSpeed, ...]
"""The speed of a model; none of one that was met and not measured."""


class Speeds:
    """Speeds by model in a small file of JSON, for this machine and the installed build.

    The file is only a help: where it cannot be read or written, nothing is known. `path` None keeps
    nothing. `of_chats` gives what replies in chats took, by the names of their models.
    """

    def __init__(
        self, path: Path | None, of_chats: Callable[[], Mapping[str, ModelSpeed]] = dict
    ) -> None:
        self._entries = NewestEntries(path, "speeds", VERSION, MOST_MODELS, Kept)
        self._of_chats = lru_cache(maxsize=1)(of_chats)

    def of(self, identity: str | None, name: str = "") -> ModelSpeed | None:
        """The speed of a model by its identity, else by its name in chats; None where unknown.

        What `kvchat tune` measured comes before a benchmark, and that before chats.
        """
        return self.of_all([(identity, name)])[0]

    def of_all(self, models: Iterable[tuple[str | None, str]]) -> list[ModelSpeed | None]:
        """The speeds of several models, each by its identity and name, as `of` finds one."""
        kept = self._entries.read()
        return [self._of(kept, identity, name) for identity, name in models]

    def _of(self, kept: Mapping[str, Kept], identity: str | None, name: str) -> ModelSpeed | None:
        for by in ("tune", "bench") if identity is not None else ():
            found = kept.get(_key(identity or "", by))
            if found and found[0].is_sane:
                return found[0]
        return self._of_chats().get(name)

    def keep(self, identity: str, speed: ModelSpeed) -> None:
        """Keep a speed in the place of the one before."""
        self._entries.add(_key(identity, speed.by), (speed,))

    def meet(self, identity: str) -> bool:
        """Whether this model was neither measured nor met before; from now on it was."""
        key = _key(identity, "tune")
        if key in self._entries.read():
            return False
        self._entries.add(key, ())
        return True


def _key(identity: str, by: str) -> str:
    facts = repr(
        (VERSION, *machine(), installed_build(), identity, *([by] if by != "tune" else []))
    )
    return hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()
