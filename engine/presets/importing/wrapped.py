"""The command of llama-server inside a systemd unit or a compose file."""

import re

from engine.presets.importing.choice import chosen
from engine.presets.importing.command import read_words
from engine.presets.importing.imported import Imported, ImportedFileError
from engine.presets.importing.shell import commands
from engine.presets.importing.yaml_part import Node, parse_yaml

_EXEC_START = re.compile(r"^ExecStart\s*=\s*[-@:+!|]*(.*)$", re.MULTILINE)
_ENVIRONMENT = re.compile(r"^Environment\s*=\s*(.*)$", re.MULTILINE)
_SYSTEMD_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|\'([^\']*)\'|(\S+)')


def looks_like_systemd(text: str) -> bool:
    """Whether a text is a unit that starts something."""
    return re.search(r"^\[Service\]", text, re.MULTILINE) is not None


def looks_like_compose(text: str) -> bool:
    """Whether a text is a compose file."""
    return re.search(r"^services:\s*(#.*)?$", text, re.MULTILINE) is not None


def read_systemd(text: str, name: str | None) -> Imported:
    """Give the preset of what a unit starts.

    Raises:
        ImportedFileError: it starts nothing, or nothing that a preset has a place for.
    """
    joined = re.sub(r"\\\n", " ", text)
    started = _EXEC_START.search(joined)
    if started is None:
        raise ImportedFileError("this systemd unit has no ExecStart")
    pairs = [
        word.partition("=")
        for found in _ENVIRONMENT.finditer(joined)
        for word in _systemd_words(found[1])
    ]
    environment = {variable: value for variable, _, value in pairs}
    found = read_words(_systemd_words(started[1]), name, environment)
    return Imported(found.preset, "what a systemd unit starts", found.left_out, found.notes)


def read_compose(text: str, name: str | None, service: str | None) -> Imported:
    """Give the preset of one service's command and environment.

    Raises:
        ImportedFileError: there is no such service, or it sets nothing that a preset has.
    """
    tree = parse_yaml(text)
    services = tree.get("services") if isinstance(tree, dict) else None
    if not isinstance(services, dict):
        raise ImportedFileError("this compose file has no services")
    title = chosen(services, service, "service")
    entry = services[title]
    fields = entry if isinstance(entry, dict) else {}
    command = fields.get("command", "")
    words = command if isinstance(command, list) else _shell_words(command)
    plain = [word.replace("$$", "$") for word in words if isinstance(word, str)]
    found = read_words(plain, name, _compose_environment(fields.get("environment")))
    return Imported(
        found.preset, f"the service {title} of a compose file", found.left_out, found.notes
    )  # fmt: skip


def _systemd_words(command: str) -> list[str]:
    words = []
    for match in _SYSTEMD_WORD.finditer(command):
        word = match[1] if match[1] is not None else match[2] if match[2] is not None else match[3]
        if match[2] is None:
            word = re.sub(r"\\(.)", r"\1", word)
        words.append(word.replace("%%", "%").replace("$$", "$"))
    return words


def _shell_words(command: Node) -> list[str]:
    text = command if isinstance(command, str) else ""
    return [word for each in commands(text) for word in each.words]


def _compose_environment(listed: Node | None) -> dict[str, str]:
    if isinstance(listed, dict):
        return {name: value for name, value in listed.items() if isinstance(value, str)}
    pairs = [each.partition("=") for each in listed or [] if isinstance(each, str)]
    return {name: value for name, _, value in pairs}
