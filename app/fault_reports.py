"""Reports of unexpected exceptions: where each was raised, without any text of the user."""

import hashlib
import linecache
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from traceback import walk_tb

from app import __version__
from engine.files import replace_file

N_REPORTS = 20
"""Number of newest reports that stay in the folder."""
N_FRAMES = 40
"""Calls of each exception that a report lists, the innermost."""
N_NAMING = 3
"""Innermost calls that identify a fault; the calls before them may differ."""
N_CHAINED = 5
"""Exceptions of a chain that a report lists."""


@dataclass(frozen=True, slots=True)
class FaultReport:
    """A fault and the file of its report."""

    reference: str
    """Equal for equal code locations, in every report and on every machine."""
    path: Path | None
    """None where the file could not be written."""

    @property
    def location(self) -> str:
        """Reference and path, for a notice."""
        where = "no report could be written" if self.path is None else f"report: {self.path}"
        return f"internal error {self.reference}, {where}"


def reference_of(error: BaseException) -> str:
    """Short hash of the code location where an exception was raised."""
    places = [place for place, _ in _places(error)][-N_NAMING:]
    named = "\n".join((type(error).__name__, *places))
    return hashlib.sha256(named.encode(errors="replace")).hexdigest()[:6]


def write_report(
    folder: Path, error: BaseException, *, doing: str, reference: str | None = None
) -> FaultReport:
    """Write the report of an exception; an earlier one of the same location is replaced.

    Messages of exceptions are left out: they may contain chat texts, file names or keys.

    `doing` is what kvchat was doing; `reference` is one that is shown already, None computes it.
    """
    reference = reference or reference_of(error)
    path = folder / f"{reference}.txt"
    text = "\n".join(_lines(error, reference, doing)) + "\n"
    try:
        replace_file(path, [text.encode(errors="replace")], is_durable=False)
        reports = sorted(folder.glob("*.txt"), key=lambda each: -each.stat().st_mtime)
        for old in reports[N_REPORTS:]:
            old.unlink(missing_ok=True)
    except OSError:
        return FaultReport(reference, None)
    return FaultReport(reference, path)


def _lines(error: BaseException, reference: str, doing: str) -> Iterator[str]:
    yield f"kvchat {__version__}, Python {platform.python_version()}, {sys.platform}"
    yield f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    yield f"reference: {reference}"
    yield f"doing: {doing}"
    for each in _chain(error):
        yield ""
        number = f" [errno {each.errno}]" if isinstance(each, OSError) else ""
        yield f"{type(each).__name__}{number}"
        for place, line in _places(each):
            yield f"  {place}"
            yield f"    {line}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and what it was raised from."""
    current: BaseException | None = error
    for _ in range(N_CHAINED):
        if current is None:
            return
        yield current
        current = current.__cause__ or current.__context__


def _places(error: BaseException) -> Iterator[tuple[str, str]]:
    """The calls that lead to an exception, and the line of each."""
    for frame, line in [*walk_tb(error.__traceback__)][-N_FRAMES:]:
        code = frame.f_code
        text = linecache.getline(code.co_filename, line).strip()
        yield f"{_short(code.co_filename)}:{line} in {code.co_name}", text[:200]


def _short(file: str) -> str:
    """Path of a source file, relative to its package."""
    parts = Path(file).parts
    roots = (n for n, part in enumerate(parts) if part in ("app", "engine", "site-packages"))
    return str(Path(*parts[next(roots, len(parts) - 1) :]))
