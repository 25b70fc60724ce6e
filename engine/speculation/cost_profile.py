"""What rounds cost on this machine, kept from one start to the next."""

import hashlib
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from engine.configuration import Configuration, SamplingSettings, SpeculationSettings
from engine.files import NewestEntries
from engine.model.identity import model_identity
from engine.model.speeds import machine_facts
from engine.speculation.costs import CostProfile

VERSION = 1
MOST_PROFILES = 64

_PROFILE = TypeAdapter(CostProfile)


class KeptCosts:
    """The profile under one key of a small file of JSON, which holds one for each configuration.

    The file is only a help: where it cannot be read or written, costs are measured anew. `path`
    None keeps nothing.
    """

    def __init__(self, path: Path | None, key: str) -> None:
        self._entries = NewestEntries(path, "profiles", VERSION, MOST_PROFILES)
        self._key = key

    @classmethod
    def of(cls, configuration: Configuration, path: Path | None) -> "KeptCosts":
        """Those of a configuration.

        Raises:
            ModelFileError: a model cannot be read.
        """
        return cls(path, "" if path is None else profile_key(configuration))

    def read(self) -> CostProfile | None:
        """What an earlier run left, None where it left nothing usable."""
        try:
            return _PROFILE.validate_python(self._entries.read().get(self._key))
        except ValidationError:
            return None

    def write(self, profile: CostProfile) -> None:
        """Leave the costs to later runs; the oldest of more than `MOST_PROFILES` go."""
        self._entries.add(self._key, asdict(profile))


def profile_key(configuration: Configuration) -> str:
    """What tells machine, build, models and settings of a cost apart: a digest.

    Who drafts, how tokens are drawn and what files are called change no cost.

    Raises:
        ModelFileError: a model cannot be read.
    """
    draft = configuration.draft
    files = [configuration.model_path, *([draft.model_path] if draft else [])]
    nowhere = Path()
    settings = replace(
        configuration,
        model_path=nowhere,
        draft=None if draft is None else replace(draft, model_path=nowhere),
        speculation=SpeculationSettings(),
        sampling=SamplingSettings(),
    )
    facts = (VERSION, *machine_facts(), [model_identity(path) for path in files], settings)
    return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()
