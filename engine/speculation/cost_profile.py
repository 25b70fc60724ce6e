"""What rounds cost on this machine, kept from one start to the next."""

import hashlib
from dataclasses import replace
from pathlib import Path

from engine.configuration import Configuration, SamplingSettings, SpeculationSettings
from engine.files import NewestEntries
from engine.model.identity import model_identity
from engine.model.speeds import machine_facts
from engine.speculation.costs import CostProfile, KnownCost

VERSION = 1
MOST_PROFILES = 64


class CostMemory:
    """Profiles in a small file of JSON, one for each machine, model, build and settings.

    The file is only a help: where it cannot be read or written, costs are measured anew. `path`
    None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._entries = NewestEntries(path, "profiles", VERSION, MOST_PROFILES)

    def read(self, key: str) -> CostProfile | None:
        """What was kept under a key, None where nothing usable was."""
        return _profile(self._entries.read().get(key))

    def write(self, key: str, profile: CostProfile) -> None:
        """Keep a profile; the oldest ones go where there are more than `MOST_PROFILES`."""
        entry = {
            "plain_s": profile.plain_s,
            "points": profile.points,
            "drafting": {name: list(cost) for name, cost in profile.drafting.items()},
        }
        self._entries.add(key, entry)


class KeptCosts:
    """The profile of one configuration, in the file of all.

    Raises:
        ModelFileError: a model cannot be read.
    """

    def __init__(self, configuration: Configuration, path: Path | None) -> None:
        self._memory = CostMemory(path)
        self._key = "" if path is None else profile_key(configuration)

    def read(self) -> CostProfile | None:
        """What an earlier run left, None where it left nothing."""
        return self._memory.read(self._key)

    def write(self, profile: CostProfile) -> None:
        """Leave the costs to later runs."""
        self._memory.write(self._key, profile)


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
    facts = (
        VERSION,
        *machine_facts(),
        [model_identity(path) for path in files],
        settings,
    )
    return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def _profile(entry: object) -> CostProfile | None:
    try:
        if not isinstance(entry, dict):
            return None
        points = tuple((int(n_rows), float(steps)) for n_rows, steps in entry["points"])
        drafting = {
            str(name): KnownCost(*map(float, cost)) for name, cost in entry["drafting"].items()
        }
        profile = CostProfile(float(entry["plain_s"]), points, drafting)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        return None
    is_sane = 0 < profile.plain_s < 1000 and all(n > 0 and 0 < steps < 1000 for n, steps in points)
    is_sane = is_sane and all(0 <= part < 1000 for cost in drafting.values() for part in cost)
    return profile if is_sane else None
