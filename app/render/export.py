"""An export as lines: the text as it will be written, and what is said beside it."""

from collections.abc import Iterable

from app.render.lines import EMPTY, Line, Run, wrapped
from app.render.plan import warning_lines
from app.render.sanitize import visible
from engine.presets.export.formats import ExportFormat
from engine.presets.export.request import Exported, ExportRequest

COMMENT_MARKS = ("#", ";")


def export_lines(
    format_: ExportFormat, request: ExportRequest, exported: Exported, width: int
) -> list[Line]:
    """Give the text, wrapped, and behind it companions and what stands in no comment."""
    lines = list(_text_lines(exported.text, width, has_comments=format_.has_comments))
    for companion in exported.companions:
        lines += [EMPTY, (Run(companion.file_name, "heading-minor"),)]
        lines += _text_lines(companion.text, width, has_comments=False)
    notes = () if format_.has_comments else (*exported.remarks, *request.warnings)
    if notes:
        lines.append(EMPTY)
    for note in notes:
        lines += warning_lines(note, width)
    return lines


def place_line(format_: ExportFormat, request: ExportRequest, exported: Exported) -> Line:
    """Say what the file is called and where it would be installed."""
    name = Run(format_.file_name(request), "strong")
    if exported.install_path is None:
        return (name,)
    return (name, Run(f"  goes to {visible(str(exported.install_path))}", "muted"))


def _text_lines(text: str, width: int, *, has_comments: bool) -> Iterable[Line]:
    for row in text.splitlines():
        is_comment = has_comments and row.startswith(COMMENT_MARKS)
        runs: Line = (Run(visible(row), "muted" if is_comment else ""),)
        yield from wrapped(runs, width) if row else [EMPTY]
