"""The command of llama-server inside a systemd unit or a compose file."""

import json
import re
from dataclasses import replace

from engine.presets.importing.choice import chosen
from engine.presets.importing.command import read_words
from engine.presets.importing.imported import Imported, ImportedFileError
from engine.presets.importing.shell import commands
from engine.presets.importing.yaml_tree import Node, parse_yaml

_EXEC_START = re.compile(r"^ExecStart\s*=\s*[-@:+!|]*(.*)$", re.MULTILINE)
_ENVIRONMENT = re.compile(r"^Environment\s*=\s*(.*)$", re.MULTILINE)
_ENVIRONMENT_FILE = re.compile(r"^EnvironmentFile\s*=\s*(.+)$", re.MULTILINE)
ELSEWHERE = ("env_file", "extends")
"""Keys of a compose service whose settings stand in other files."""
_SYSTEMD_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|\'([^\']*)\'|(\S+)')


def looks_like_systemd(text: str) -> bool:
    """Whether a text is a unit that starts something."""
    return re.search(r"^\[Service\]", text, re.MULTILINE) is not None


def looks_like_compose(text: str) -> bool:
    """Whether a text is a compose file."""
    return re.search(r"^[\"']?services[\"']?\s*:", text, re.MULTILINE) is not None


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
    files = tuple(f"EnvironmentFile={path}" for path in _ENVIRONMENT_FILE.findall(joined))
    found = read_words(_systemd_words(started[1]), name, environment)
    return replace(
        found, source="what a systemd unit starts", left_out=(*found.left_out, *files)
    )  # fmt: skip


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
    command = [*_words(fields.get("entrypoint")), *_words(fields.get("command"))]
    environment, left_out = _compose_environment(fields.get("environment"))
    left_out += [f"{key}: {_written(fields[key])}" for key in ELSEWHERE if key in fields]
    found = read_words([word.replace("$$", "$") for word in command], name, environment)
    return replace(
        found,
        source=f"the service {title} of a compose file",
        left_out=(*found.left_out, *left_out),
    )


def _systemd_words(command: str) -> list[str]:
    words = []
    for match in _SYSTEMD_WORD.finditer(command):
        word = match[1] if match[1] is not None else match[2] if match[2] is not None else match[3]
        if match[2] is None:
            word = re.sub(r"\\(.)", r"\1", word)
        words.append(word.replace("%%", "%").replace("$$", "$"))
    return words


def _words(command: Node | None) -> list[str]:
    if isinstance(command, list):
        return [word for word in command if isinstance(word, str)]
    text = command if isinstance(command, str) else ""
    return [word for each in commands(text) for word in each.words]


def _compose_environment(listed: Node | None) -> tuple[dict[str, str], list[str]]:
    """The variables, and those of llama-server that the file leaves to whoever starts it."""
    pairs = listed.items() if isinstance(listed, dict) else (
        (name, value if equals else "")
        for each in listed or []
        if isinstance(each, str)
        for name, equals, value in [each.partition("=")]
    )  # fmt: skip
    found: dict[str, str] = {}
    left_out: list[str] = []
    for name, value in pairs:
        if isinstance(value, str) and value not in ("", "null", "~"):
            found[name] = value
        elif name.startswith("LLAMA_"):
            left_out.append(f"{name} (its value is not in the file)")
    return found, left_out


def _written(value: Node) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
