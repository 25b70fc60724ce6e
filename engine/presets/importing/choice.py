"""One of several models in a file."""

import difflib
from collections.abc import Collection

from engine.presets.importing.imported import ImportedFileError


def chosen(names: Collection[str], wanted: str | None, what: str) -> str:
    """Give the name that is wanted, or the only one there is.

    Raises:
        ImportedFileError: it is not there, or there are several and none is wanted.
    """
    if wanted in names:
        return str(wanted)
    listed = ", ".join(names)
    if wanted is not None:
        near = difflib.get_close_matches(wanted, list(names), n=1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise ImportedFileError(f"there is no {what} {wanted!r}{hint} There are {listed}")
    if len(names) != 1:
        raise ImportedFileError(f"there are {len(names)} of them, say which {what}: {listed}")
    return next(iter(names))
