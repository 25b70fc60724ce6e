"""A model of llama-swap's configuration (schema of August 2026, commit 0bdb3720)."""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.presets.programs.base import (
    Exported,
    ExportRequest,
    Format,
    Imported,
    ImportedFileError,
    ImportRequest,
    chosen,
    comments,
    named_file,
    slug,
    with_absolute_paths,
    yaml_text,
)
from engine.presets.programs.llama_server import heading, read_words, request_remarks, serving
from engine.presets.programs.shell import MAX_EXPANDED, commands, lines_of

if TYPE_CHECKING:
    from engine.presets.programs.yaml_tree import Node

PORT = "${PORT}"  # llama-swap gives each model a port
DEEPEST_MACRO = 10

_MACRO = re.compile(r"\$\{([^{}]*)\}")


def render(request: ExportRequest) -> Exported:
    """A whole configuration with one model, or an entry to copy into one that is there."""
    *words, _, _ = serving(with_absolute_paths(request))
    remarks = request_remarks(request)
    command = [*map(_words, lines_of(words)), f"--port {PORT}"]
    # It finds macros in names too, and no quote or escape hides one (`config.go`, 00460400).
    name = request.name.replace("${", "$ {")
    lines = [
        "healthCheckTimeout: 600",
        "models:",
        f"  {yaml_text(slug(request.name))}:",
        f"    name: {yaml_text(name)}",
        "    cmd: |",
        *(f"      {line}" for line in command),
    ]
    top = heading(request, remarks, start=f"llama-swap --config {file_name(request)}")
    return Exported(comments(top) + "\n".join(lines) + "\n", remarks)


def is_llama_swap(request: ImportRequest) -> bool:
    """Whether a text has llama-swap's list of models."""
    return re.search(r"^[\"']?models[\"']?\s*:", request.text, re.MULTILINE) is not None


def read(request: ImportRequest) -> Imported:
    """The preset of one model, its macros put in.

    Raises:
        ImportedFileError: it is not such a file, or there are several models and none is named.
    """
    from engine.presets.programs.yaml_tree import parse_yaml  # an export needs no parser

    tree = parse_yaml(request.text)
    models = tree.get("models") if isinstance(tree, dict) else None
    if not isinstance(tree, dict) or not isinstance(models, dict):
        raise ImportedFileError("this YAML is not llama-swap's: it has no models")
    title = chosen(models, request.entry, "model")
    entry = models[title]
    command = entry.get("cmd") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(command, str):
        raise ImportedFileError(f"the model {title} of this llama-swap configuration has no cmd")
    macros = {**_macros(tree), **_macros(entry), "MODEL_ID": title}
    lines = (line for line in command.splitlines() if not line.lstrip().startswith("#"))
    text = "\n".join(line.rstrip().removesuffix("\\") for line in lines)
    words = [word for each in commands(_expanded(text, macros)) for word in each.words]
    found = read_words(words, request.name or title, _environment(entry.get("env")))
    return replace(found, source=f"the model {title} of llama-swap")


def _words(words: Iterable[str]) -> str:
    """Join words for llama-swap, which replaces `${name}` before it splits like a shell.

    A quoted brace ends and starts its quotes anew, so that the text has no `${` in it.
    """
    return shlex.join(words).replace("${", "$''{")


def _macros(tree: "dict[str, Node]") -> dict[str, str]:
    found = tree.get("macros")
    pairs = found.items() if isinstance(found, dict) else ()
    return {name: " ".join(value.split()) for name, value in pairs if isinstance(value, str)}


def _expanded(text: str, macros: Mapping[str, str]) -> str:
    for _ in range(DEEPEST_MACRO):
        before, n_left = text, MAX_EXPANDED
        parts: list[str] = []
        for index, part in enumerate(_MACRO.split(text)):
            is_name = index % 2
            parts.append(macros.get(part, f"${{{part}}}") if is_name else part)
            n_left -= len(parts[-1])
            if n_left < 0:
                raise ImportedFileError(
                    f"the macros of this llama-swap configuration expand to more "
                    f"than {MAX_EXPANDED:,} characters: give the command with its values written "
                    "out"
                )
        text = "".join(parts)
        if text == before:
            return text
    raise ImportedFileError("the macros of this llama-swap configuration contain each other")


def _environment(listed: "Node | None") -> dict[str, str]:
    pairs = [each.partition("=") for each in listed or [] if isinstance(each, str)]
    return {name: value for name, _, value in pairs}


file_name = named_file(".llama-swap.yaml")
FORMAT = Format(
    "llama-swap",
    "llama-swap YAML",
    file_name,
    render,
    starts_server=True,
    recognises=is_llama_swap,
    read=read,
)
