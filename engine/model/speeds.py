"""Speeds of models on this machine, measured by `kvchat tune`, `kvchat bench` and in chats."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from engine.builds import installed_build, machine
from engine.files import NewestEntries

VERSION = 2
MAX_MODELS = 256
MAX_TPS = 1e7

Measured = Literal["tune", "bench", "chats"]


@dataclass(frozen=True, slots=True)
class ModelSpeed:
    """The speed of one model on this machine without drafts, in tokens per second."""

    decode_tps: float  # decoded in a short chat
    deep_tps: float | None  # decoded at depth `n_deep`; None if only short chats were measured
    n_deep: int | None
    prompt_tps: float | None  # of the prefill
    preset: str  # name of the preset, or empty
    measured: str  # date in ISO 8601
    by: Measured = "tune"
    n_replies: int | None = None  # replies that it is the median of; None for a measurement

    @property
    def is_valid(self) -> bool:
        rates = (self.decode_tps, self.deep_tps, self.prompt_tps)
        is_possible = all(0 < rate < MAX_TPS for rate in rates if rate is not None)
        return is_possible and (self.n_deep is None or self.n_deep > 0)


Stored = tuple[ModelSpeed, ...]  # empty for a model that was loaded and not measured


class Speeds:
    """Speeds by model in a JSON file, for this machine and the installed build.

    A file that cannot be read is empty; without a path nothing is stored. `of_chats` returns the
    speeds of replies in chats by the names of their models.
    """

    def __init__(
        self, path: Path | None, of_chats: Callable[[], Mapping[str, ModelSpeed]] = dict
    ) -> None:
        self._entries = NewestEntries(path, "speeds", VERSION, MAX_MODELS, Stored)
        self._of_chats = lru_cache(maxsize=1)(of_chats)

    def of(self, identity: str | None, name: str = "") -> ModelSpeed | None:
        """Measured speed of a model: of `tune`, else of `bench`, else of chats with this name."""
        return self.of_all([(identity, name)])[0]

    def of_all(self, models: Iterable[tuple[str | None, str]]) -> list[ModelSpeed | None]:
        """The speeds of several models by identity and name; reads the file once."""
        stored, found = self._entries.read(), []
        for identity, name in models:
            keys = [_key(identity, by) for by in ("tune", "bench")] if identity else []
            measured = [speed for key in keys for speed in stored.get(key, ()) if speed.is_valid]
            found.append(measured[0] if measured else self._of_chats().get(name))
        return found

    def keep(self, identity: str, speed: ModelSpeed) -> None:
        """Store a speed, replacing the previous one."""
        self._entries.add(_key(identity, speed.by), (speed,))

    def meet(self, identity: str) -> bool:
        """Whether this is the first call for a model that was not measured either."""
        key = _key(identity, "tune")
        if key in self._entries.read():
            return False
        self._entries.add(key, ())
        return True


def _key(identity: str, by: str) -> str:
    source = [by] if by != "tune" else []
    facts = repr((VERSION, *machine(), installed_build(), identity, *source))
    return hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()
