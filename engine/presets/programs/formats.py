"""Every program and wrapping that a configuration can leave for, and their texts told apart."""

from dataclasses import replace
from pathlib import Path

from engine.files import RECORDS_BYTES, replace_file
from engine.files import read_text as read_file
from engine.parsing import parse_json
from engine.presets.programs import (
    compose,
    koboldcpp,
    llama_cpp_python,
    llama_server,
    llama_swap,
    lm_studio,
    models_preset,
    ollama,
    shell,
    systemd,
)
from engine.presets.programs.base import (
    Exported,
    ExportError,
    Format,
    Imported,
    ImportedFileError,
    ImportRequest,
)

FORMATS: dict[str, Format] = {
    each.FORMAT.name: each.FORMAT
    for each in (
        llama_server,
        shell,
        systemd,
        compose,
        models_preset,
        llama_swap,
        lm_studio,
        ollama,
        koboldcpp,
        llama_cpp_python,
    )
}
"""By name, in the order that lists show."""


def read_text(
    text: str,
    *,
    name: str | None = None,
    entry: str | None = None,
    model: str | None = None,
    n_layers: int | None = None,
) -> Imported:
    """The preset of a text: a command, a script, or another program's configuration.

    Args:
        text: what was written.
        name: how the preset shall be called; left out, the text names it.
        entry: which section, model or service, where a text has several.
        model: model of the preset, where the text names none.
        n_layers: layers of that model, which LM Studio's shares are shares of.

    Raises:
        ImportedFileError: it is none of these, or names nothing that a preset has.
    """
    text = text.removeprefix("\ufeff")
    found = _read(ImportRequest(text, None, name, entry, model, n_layers))
    if model is None or found.preset.model is not None:
        return found
    return replace(found, preset=found.preset.model_copy(update={"model": model}))


def _read(request: ImportRequest) -> Imported:
    if not request.text.strip():
        raise ImportedFileError("there is nothing to import: the text is empty")
    is_json = request.text.lstrip().startswith("{")
    if is_json:
        request = replace(request, data=_json(request.text))
    # From the end on: a Modelfile may hold any text, a unit or a compose file too.
    for each in reversed(FORMATS.values()):
        has_its_look = each.has_comments is not is_json  # JSON has none
        if each.read is not None and has_its_look and each.recognises(request):
            return each.read(request)
    if is_json:
        raise ImportedFileError(
            "this JSON is not from LM Studio (`load.fields`), koboldcpp (`model_param`) "
            "or llama-cpp-python's server (`models`)"
        )
    return shell.read(request)


def _json(text: str) -> dict[str, object]:
    try:
        data = parse_json(text)
    except ValueError as error:
        raise ImportedFileError(f"this is not valid JSON: {error}") from error
    assert isinstance(data, dict)  # it starts with a brace
    return data


def write(exported: Exported, path: Path, *, replace_existing: bool = False) -> list[Path]:
    """Write an export with what comes with it; the result is the files.

    Raises:
        ExportError: their folder is not there, one of them is there already, or they cannot be
            written.
    """
    if not path.parent.exists():
        raise ExportError(f"no folder {path.parent}: make it, or name another file")
    return _write_all(exported, path, replace_existing=replace_existing)


def _write_all(exported: Exported, path: Path, *, replace_existing: bool) -> list[Path]:
    texts = {path: exported.text}
    texts |= {path.with_name(each.file_name): each.text for each in exported.companions}
    for file in texts:
        if file.exists() and not replace_existing:
            raise ExportError(f"{file} exists already: name another file, or allow replacing it")
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
        raise ExportError(f"{format_.title} has no default path here: write it to a file")
    if format_.merge is None or not path.exists():
        _write_all(exported, path, replace_existing=replace_existing)
        return path, None
    try:
        existing, mode = read_file(path, limit=RECORDS_BYTES), path.stat().st_mode & 0o777
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
