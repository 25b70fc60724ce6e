"""A command line of llama-server, or a script that has one."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from engine.presets.importing.given import from_words
from engine.presets.importing.imported import Imported, ImportedFileError
from engine.presets.importing.rules import preset_from
from engine.presets.importing.shell import Command, commands

SERVER = "llama-server"
SUBCOMMANDS = ("serve", "server")
"""`llama serve` is llama-server under llama.cpp's one binary."""


def read_words(
    words: Sequence[str], name: str | None, environment: Mapping[str, str] | None = None
) -> Imported:
    """Give the preset of a command in words, its program first or left out.

    Raises:
        ImportedFileError: none of its flags means anything to a preset.
    """
    given = from_words(_arguments(words), environment)
    model = given.values.get("model", SERVER)
    called = name or PurePath(model).stem or SERVER
    return preset_from(given, called, "a llama-server command line")


def read_script(text: str, name: str | None) -> Imported:
    """Give the preset of the command in a text that starts a llama-server.

    Raises:
        ImportedFileError: there is no such command, or none of its flags means anything.
    """
    found = commands(text)
    starting = next((each for each in found if _starts_server(each.words)), None)
    if starting is None:
        starting = next((each for each in found if each.words[0].startswith("-")), None)
    if starting is None:
        starting = _settings_only(text, found)
    if starting is None:
        raise ImportedFileError(
            "this is no llama-server command line, no models preset, no llama-swap or LM Studio "
            "configuration: give one of those, or the command behind `--`"
        )
    return read_words(starting.words, name, starting.environment)


def _arguments(words: Sequence[str]) -> list[str]:
    for place, word in enumerate(words):
        if word.startswith("-"):
            return list(words[place:])
        if _is_server(word):
            rest = list(words[place + 1 :])
            return rest[1:] if rest and rest[0] in SUBCOMMANDS else rest
    return []


def _starts_server(words: Sequence[str]) -> bool:
    return any(map(_is_server, words)) and any(word.startswith("-") for word in words)


def _is_server(word: str) -> bool:
    stem = PurePath(word.replace("\\", "/")).name.removesuffix(".exe")
    return stem in (SERVER, "llama") or ("llama" in stem and stem.endswith("server"))


def _settings_only(text: str, found: Sequence[Command]) -> Command | None:
    """Give variables alone, as in an environment file, where nothing is started."""
    if found or "LLAMA_ARG_" not in text:
        return None
    marked = commands(f"{text}\nllama-server --environment")
    return Command(("llama-server",), marked[-1].environment)
