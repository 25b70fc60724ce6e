"""Writing an export: never over a file that is there, unless allowed, or by joining the two."""

from pathlib import Path

from engine.files import RECORDS_BYTES, read_text, replace_file
from engine.presets.programs.base import Exported, ExportError, Format


def write(exported: Exported, path: Path, *, replace_existing: bool = False) -> list[Path]:
    """Write an export with what comes with it; the result is the files.

    Raises:
        ExportError: one of them is there already, or cannot be written.
    """
    texts = {path: exported.text}
    texts |= {path.with_name(each.file_name): each.text for each in exported.companions}
    for file in texts:
        if file.exists() and not replace_existing:
            raise ExportError(f"{file} is there already: name another file, or allow replacing it")
    for file, text in texts.items():
        _write(file, text, mode=0o777 if text.startswith("#!") else 0o666)
    return list(texts)


def install(
    exported: Exported, format_: Format, *, replace_existing: bool = False
) -> tuple[Path, Path | None]:
    """Write an export to where its program looks for it; the result is that file and the backup.

    Where the format can join texts, what is there is kept as a backup and joined with the export.

    Raises:
        ExportError: the format has no such path here, a file is there that cannot be joined, or
            nothing can be written.
    """
    path = exported.install_path
    if path is None:
        raise ExportError(f"{format_.title} has no path of its own here: write it to a file")
    if format_.merge is None or not path.exists():
        write(exported, path, replace_existing=replace_existing)
        return path, None
    try:
        existing, mode = read_text(path, limit=RECORDS_BYTES), path.stat().st_mode & 0o777
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"{path} cannot be read: {error}") from error
    merged = format_.merge(existing, exported.text)
    backup = _free_name(path)
    _write(backup, existing, mode=mode)
    _write(path, merged, mode=mode)
    return path, backup


def _free_name(path: Path) -> Path:
    backup = path.with_name(f"{path.name}.bak")
    number = 1
    while backup.exists():
        number += 1
        backup = path.with_name(f"{path.name}.bak{number}")
    return backup


def _write(path: Path, text: str, *, mode: int = 0o666) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [text.encode()], is_durable=False, mode=mode)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror or error}") from error
