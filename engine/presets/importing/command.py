"""A command line of llama-server, or a script that has one."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from engine.presets.importing.given import from_words
from engine.presets.importing.imported import Imported, ImportedFileError
from engine.presets.importing.rules import preset_from
from engine.presets.importing.shell import commands, settings_only

SERVER = "llama-server"
_IMAGE = re.compile(r"llama\.cpp:(?:server|full)")
_ASSIGNMENT = re.compile(r"LLAMA_\w+=.*", re.DOTALL)
SUBCOMMANDS = ("serve", "server")
"""`llama serve` is llama-server under llama.cpp's one binary."""


def read_words(
    words: Sequence[str], name: str | None, environment: Mapping[str, str] | None = None
) -> Imported:
    """Give the preset of a command in words, its program first or left out.

    Raises:
        ImportedFileError: none of its flags means anything to a preset.
    """
    before = words[: _server_place(words) or 0]
    local = dict(word.split("=", 1) for word in before if _ASSIGNMENT.fullmatch(word))
    given = from_words(_arguments(words), {**(environment or {}), **local})
    model = given.values.get("model", SERVER)
    called = name or PurePath(model).stem or SERVER
    return preset_from(given, called, "a llama-server command line")


def read_script(text: str, name: str | None) -> Imported:
    """Give the preset of the command in a text that starts a llama-server.

    Raises:
        ImportedFileError: there is no such command, or none of its flags means anything.
    """
    starting = next((each for each in commands(text) if _starts_server(each.words)), None)
    if starting is None:
        starting = next((each for each in commands(text) if each.words[0].startswith("-")), None)
    if starting is not None:
        return read_words(starting.words, name, starting.environment)
    settings = settings_only(text)
    if not any(variable.startswith("LLAMA_ARG_") for variable in settings):
        raise ImportedFileError(
            "this is no llama-server command line, no models preset, and no file of llama-swap, LM "
            "Studio, Ollama or koboldcpp: give one of those, or the command behind `--`"
        )
    return read_words(["llama-server"], name, settings)


def _arguments(words: Sequence[str]) -> list[str]:
    """Give what stands behind the server's name, or from the first flag on where it is left out."""
    place = _server_place(words)
    if place is not None:
        return list(words[place + 1 :])
    flag = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    return list(words[flag:])


def _starts_server(words: Sequence[str]) -> bool:
    place = _server_place(words)
    return place is not None and any(word.startswith("-") for word in words[place:])


def _server_place(words: Sequence[str]) -> int | None:
    """Give the place of the server's name: the program, its subcommand, or a container's image."""
    for place, word in enumerate(words):
        if "llama" not in word:
            continue
        name = PurePath(word).name.removesuffix(".exe")
        if name == "llama" and words[place + 1 : place + 2] and words[place + 1] in SUBCOMMANDS:
            return place + 1
        if _IMAGE.search(word) or ("llama" in name and name.endswith("server")):
            return place
    return None
