"""An export in the format of another program, and where its file belongs."""

from collections.abc import Iterable

from app.render.lines import EMPTY, Line, Run, wrapped
from app.render.plan import warning_lines
from app.sanitize import visible
from engine.presets.export import Exported, ExportError, ExportRequest, Format

COMMENT_MARKS = ("#", ";")


def target_line(format_: Format, request: ExportRequest, exported: Exported | ExportError) -> Line:
    """The program, the name of the file, and where the program looks for it."""
    title = (Run(f" export to {format_.title}", "strong"),)
    if isinstance(exported, ExportError):
        return title
    place = "" if exported.install_path is None else f"  install as {exported.install_path}"
    return (*title, Run(f"  {format_.file_name(request)}"), Run(visible(place), "muted"))


def export_lines(
    format_: Format, request: ExportRequest, exported: Exported, width: int
) -> list[Line]:
    """The text, its companion files, and the notes that the format cannot hold as comments."""
    lines = list(_text_lines(exported.text, width, has_comments=format_.has_comments))
    for name, text in exported.companions.items():
        lines += [EMPTY, (Run(name, "heading-minor"),)]
        lines += _text_lines(text, width, has_comments=False)
    notes = () if format_.has_comments else (*exported.differences, *request.warnings)
    if notes:
        lines.append(EMPTY)
    return [*lines, *(line for note in notes for line in warning_lines(note, width))]


def _text_lines(text: str, width: int, *, has_comments: bool) -> Iterable[Line]:
    for row in text.splitlines():
        is_comment = has_comments and row.startswith(COMMENT_MARKS)
        yield from wrapped((Run(visible(row), "muted" if is_comment else ""),), width)
