"""Reads kept states whole, and says of each whether it is as it was written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.cache.disk_index import ColdEntry
from engine.cache.snapshot_folder import ColdFolder
from engine.errors import CacheStoreError, StateError


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a look at one state gave."""

    key: str
    """Empty where the head of a file could not be read."""
    problem: str | None = None
    """What is wrong; None where nothing is."""


def verified(
    folder: ColdFolder, entries: Sequence[ColdEntry], *, tell: Callable[[int, int], None]
) -> list[Verdict]:
    """Check states, damaged files that were found while listing them included.

    Args:
        folder: Where they lie; damaged ones are removed.
        entries: The states.
        tell: Is called with how many are done, of how many.
    """
    verdicts = [Verdict("", note) for note in folder.take_damaged()]
    for n_done, entry in enumerate(entries):
        tell(n_done, len(entries))
        try:
            folder.verify(entry.namespace, entry.state.key)
            verdicts.append(Verdict(entry.state.key))
        except (StateError, CacheStoreError) as error:
            verdicts.append(Verdict(entry.state.key, str(error)))
    tell(len(entries), len(entries))
    return verdicts
