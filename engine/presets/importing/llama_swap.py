"""A model of llama-swap's configuration as a preset."""

import re
from collections.abc import Mapping

from engine.presets.importing.choice import chosen
from engine.presets.importing.command import read_words
from engine.presets.importing.imported import Imported, ImportedFileError
from engine.presets.importing.shell import MAX_EXPANDED, commands
from engine.presets.importing.yaml_tree import Node, parse_yaml

DEEPEST_MACRO = 10
_MACRO = re.compile(r"\$\{([^{}]*)\}")


def looks_like_llama_swap(text: str) -> bool:
    """Whether a text has llama-swap's list of models."""
    return re.search(r"^[\"']?models[\"']?\s*:", text, re.MULTILINE) is not None


def read_llama_swap(text: str, name: str | None, model: str | None) -> Imported:
    """Give the preset of one model, its macros put in.

    Raises:
        ImportedFileError: it is not such a file, or there are several models and none is named.
    """
    tree = parse_yaml(text)
    models = tree.get("models") if isinstance(tree, dict) else None
    if not isinstance(tree, dict) or not isinstance(models, dict):
        raise ImportedFileError("this YAML is not llama-swap's: it has no models")
    title = chosen(models, model, "model")
    entry = models[title]
    command = entry.get("cmd") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(command, str):
        raise ImportedFileError(f"the model {title} of this llama-swap configuration has no cmd")
    macros = {**_macros(tree), **_macros(entry), "MODEL_ID": title}
    lines = (line for line in command.splitlines() if not line.lstrip().startswith("#"))
    flat = " ".join(line.rstrip().removesuffix("\\") for line in lines)
    words = [word for each in commands(_expanded(flat, macros)) for word in each.words]
    found = read_words(words, name or title, _environment(entry.get("env")))
    return Imported(
        found.preset, f"the model {title} of llama-swap", found.left_out, found.notes
    )  # fmt: skip


def _macros(tree: dict[str, Node]) -> dict[str, str]:
    found = tree.get("macros")
    pairs = found.items() if isinstance(found, dict) else ()
    return {name: " ".join(value.split()) for name, value in pairs if isinstance(value, str)}


def _expanded(text: str, macros: Mapping[str, str]) -> str:
    for _ in range(DEEPEST_MACRO):
        before, n_left = text, MAX_EXPANDED
        parts: list[str] = []
        for place, part in enumerate(_MACRO.split(text)):
            is_name = place % 2
            parts.append(macros.get(part, f"${{{part}}}") if is_name else part)
            n_left -= len(parts[-1])
            if n_left < 0:
                raise ImportedFileError(
                    f"the macros of this llama-swap configuration come to more than "
                    f"{MAX_EXPANDED:,} characters: give the command with its values written out"
                )
        text = "".join(parts)
        if text == before:
            return text
    raise ImportedFileError("the macros of this llama-swap configuration contain each other")


def _environment(listed: Node | None) -> dict[str, str]:
    pairs = [each.partition("=") for each in listed or [] if isinstance(each, str)]
    return {name: value for name, _, value in pairs}
