"""Every format that a configuration is exported to, and the reader of their texts."""

import re
from dataclasses import replace
from typing import Any

from engine.parsing import parse_json
from engine.presets import koboldcpp, llama_cpp_python, lm_studio, ollama, wrappers
from engine.presets.export import (
    ExportError,
    Format,
    Imported,
    ImportedFileError,
    ImportRequest,
    named_file,
)
from engine.presets.fields import preset_name
from engine.validation import nearest

PROGRAMS = (
    Format("lm-studio", "LM Studio defaults for the model, JSON",
           lambda request: f"{request.configuration.model_path.name}.json",  # as LM Studio expects
           lm_studio.render,
           lambda request: any(isinstance(part, dict) and "fields" in part
                               for part in request.data.values()),
           lm_studio.read, has_comments=False, merge=lm_studio.merge),
    Format("ollama", "Ollama Modelfile and environment", named_file(".Modelfile"), ollama.render,
           lambda request: re.match(r"\s*(#.*\n\s*)*from[ \t]+\S", request.text, re.I) is not None,
           ollama.read),
    Format("koboldcpp", "koboldcpp settings, .kcpps", named_file(".kcpps"), koboldcpp.render,
           lambda request: not request.data.keys().isdisjoint(
               ("model_param", "contextsize", "gpulayers", "quantkv")),
           koboldcpp.read, has_comments=False),
    Format("llama-cpp-python", "llama-cpp-python server, JSON",
           named_file(".llama-cpp-python.json"), llama_cpp_python.render,
           lambda request: isinstance(request.data.get("models"), list),
           llama_cpp_python.read, has_comments=False),
)  # fmt: skip
FORMATS: dict[str, Format] = {each.name: each for each in (*wrappers.FORMATS, *PROGRAMS)}
"""By name, in the order that lists show."""


def export_format(name: str) -> Format:
    """The export format of a name."""
    if name not in FORMATS:
        near = nearest(name, FORMATS)
        hint = f"did you mean {near[0]}? Or choose" if near else "choose"
        raise ExportError(f"unknown format {name!r}: {hint} one of {', '.join(FORMATS)}")
    return FORMATS[name]


def read_text(
    text: str,
    *,
    name: str | None = None,
    entry: str | None = None,
    model: str | None = None,
    n_layers: int | None = None,
) -> Imported:
    """The preset of a text: a command, a script, or another program's configuration.

    `entry` is the section, model or service of a text that has several; `model` and its `n_layers`
    are used if the text names no model.
    """
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise ImportedFileError("there is nothing to import: the text is empty")
    data: Any = None
    if text.lstrip().startswith("{"):
        try:
            data = parse_json(text)
        except ValueError as error:
            raise ImportedFileError(f"this is not valid JSON: {error}") from error
    request = ImportRequest(text, data or {}, entry, n_layers)
    # From the end on: a Modelfile may hold any text, a unit or a compose file too.
    formats = [each for each in reversed(FORMATS.values()) if each.has_comments is (data is None)]
    found_format = next((each for each in formats if each.recognises(request)), None)
    if found_format is None and data is not None:
        raise ImportedFileError(
            "this JSON is not from LM Studio (`load.fields`), koboldcpp (`model_param`) "
            "or llama-cpp-python's server (`models`)"
        )
    found = (found_format or FORMATS["shell"]).read(request)
    changes: dict[str, str] = {} if name is None else {"name": preset_name(name)}
    if model is not None and found.preset.model is None:
        changes["model"] = model
    return replace(found, preset=found.preset.model_copy(update=changes)) if changes else found
