"""How fast models run on this machine, as `kvchat tune` measured it."""

import hashlib
import os
import platform
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path

from engine.backends import installed_build
from engine.files import NewestEntries

VERSION = 1
MOST_MODELS = 256
MOST_TPS = 1e7


@dataclass(frozen=True, slots=True)
class ModelSpeed:
    """What one model does here, in tokens a second."""

    decode_tps: float
    """Written in a short chat."""
    deep_tps: float
    """Written behind `n_deep` tokens."""
    n_deep: int
    prompt_tps: float
    """Read of a prompt."""
    preset: str
    """Name of the preset that it was measured with; empty for the usual settings."""
    measured: str
    """Date in ISO 8601."""


def machine_facts() -> tuple[object, ...]:
    """What a time depends on beside model and settings: the machine, and llama.cpp's build."""
    return platform.node(), platform.machine(), os.cpu_count(), installed_build()


class Speeds:
    """Speeds by model in a small file of JSON, for this machine and the installed build.

    The file is only a help: where it cannot be read or written, nothing is known. `path` None keeps
    nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._entries = NewestEntries(path, "speeds", VERSION, MOST_MODELS)

    def of(self, identity: str | None) -> ModelSpeed | None:
        """The speed of a model by its identity, None where it was not measured here."""
        return None if identity is None else _speed(self._entries.read().get(_key(identity)))

    def keep(self, identity: str, speed: ModelSpeed) -> None:
        """Keep a speed in the place of the one before."""
        self._entries.add(_key(identity), asdict(speed))

    def meet(self, identity: str) -> bool:
        """Whether this model was neither measured nor met before; from now on it was."""
        key = _key(identity)
        if key in self._entries.read():
            return False
        self._entries.add(key, {})
        return True


def _key(identity: str) -> str:
    facts = repr((VERSION, machine_facts(), identity))
    return hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()


def _speed(entry: object) -> ModelSpeed | None:
    try:
        if not isinstance(entry, dict):
            return None
        found = ModelSpeed(
            float(entry["decode_tps"]),
            float(entry["deep_tps"]),
            int(entry["n_deep"]),
            float(entry["prompt_tps"]),
            str(entry["preset"]),
            str(entry["measured"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    rates = found.decode_tps, found.deep_tps, found.prompt_tps
    is_sane = all(isfinite(rate) and 0 < rate < MOST_TPS for rate in rates) and found.n_deep > 0
    return found if is_sane else None
