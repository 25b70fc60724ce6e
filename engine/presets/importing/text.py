"""A text of any of the formats, told apart by what it says."""

from engine.parsing import parse_json
from engine.presets.importing.command import read_script
from engine.presets.importing.imported import Imported, ImportedFileError
from engine.presets.importing.ini import looks_like_ini, read_ini
from engine.presets.importing.koboldcpp import looks_like_koboldcpp, read_koboldcpp
from engine.presets.importing.llama_swap import looks_like_llama_swap, read_llama_swap
from engine.presets.importing.lm_studio import looks_like_lm_studio, read_lm_studio
from engine.presets.importing.ollama import looks_like_modelfile, read_modelfile
from engine.presets.importing.wrapped import (
    looks_like_compose,
    looks_like_systemd,
    read_compose,
    read_systemd,
)


def read_text(
    text: str,
    *,
    name: str | None = None,
    entry: str | None = None,
    model: str | None = None,
    n_layers: int | None = None,
) -> Imported:
    """Give the preset of a text: a command, a script, or another program's configuration.

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
    found = _read(text, name, entry, model, n_layers)
    if model is None or found.preset.model is not None:
        return found
    preset = found.preset.model_copy(update={"model": model})
    return Imported(preset, found.source, found.left_out, found.notes)


def _read(
    text: str, name: str | None, entry: str | None, model: str | None, n_layers: int | None
) -> Imported:
    if not text.strip():
        raise ImportedFileError("there is nothing to import: the text is empty")
    if text.lstrip().startswith("{"):
        data = _json(text)
        if looks_like_koboldcpp(data):
            return read_koboldcpp(data, name)
        return read_lm_studio(data, name, model=model, n_layers=n_layers)
    if looks_like_modelfile(text):
        return read_modelfile(text, name)
    if looks_like_systemd(text):
        return read_systemd(text, name)
    if looks_like_ini(text):
        return read_ini(text, name, entry)
    if looks_like_llama_swap(text):
        return read_llama_swap(text, name, entry)
    if looks_like_compose(text):
        return read_compose(text, name, entry)
    return read_script(text, name)


def _json(text: str) -> dict[str, object]:
    """The JSON object of LM Studio or koboldcpp."""
    try:
        data = parse_json(text)
    except ValueError as error:
        raise ImportedFileError(f"this is not valid JSON: {error}") from error
    if isinstance(data, dict) and (looks_like_koboldcpp(data) or looks_like_lm_studio(data)):
        return data
    if isinstance(data, dict) and "models" in data:
        raise ImportedFileError(
            "this JSON lists `models`, as llama-cpp-python's server has them, which are not read: "
            "every other format of `kvchat export` is"
        )
    raise ImportedFileError(
        "this JSON is neither LM Studio's, with `load.fields`, nor koboldcpp's, with `model_param`"
    )
