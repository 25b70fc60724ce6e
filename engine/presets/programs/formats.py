"""Every program and wrapping that a configuration can leave for, and their texts told apart."""

from dataclasses import replace

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
from engine.presets.programs.base import Format, Imported, ImportedFileError, ImportRequest

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

_OF_JSON = (koboldcpp.FORMAT, lm_studio.FORMAT, llama_cpp_python.FORMAT)
_OF_TEXT = (
    ollama.FORMAT,
    systemd.FORMAT,
    models_preset.FORMAT,
    llama_swap.FORMAT,
    compose.FORMAT,
)
"""In the order in which a text is held against them; what none of them knows is a shell's."""


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
    for each in _OF_JSON if is_json else _OF_TEXT:
        if each.read is not None and each.recognises(request):
            return each.read(request)
    if is_json:
        raise ImportedFileError(
            "this JSON is neither LM Studio's, with `load.fields`, nor koboldcpp's, with "
            "`model_param`, nor that of llama-cpp-python's server, with `models`"
        )
    return shell.read(request)


def _json(text: str) -> dict[str, object]:
    try:
        data = parse_json(text)
    except ValueError as error:
        raise ImportedFileError(f"this is not valid JSON: {error}") from error
    assert isinstance(data, dict)  # it starts with a brace
    return data
