"""A compose file that runs llama.cpp's own image of llama-server, and a service as a preset."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.configuration import Configuration
from engine.presets.programs.base import (
    Exported,
    ExportRequest,
    Format,
    Imported,
    ImportedFileError,
    ImportRequest,
    chosen,
    comments,
    with_absolute_paths,
    writable,
    yaml_text,
)
from engine.presets.programs.llama_server import heading, read_words, request_remarks, serving
from engine.presets.programs.shell import Reader, commands

if TYPE_CHECKING:
    from engine.presets.programs.yaml_tree import Node

IMAGE = "ghcr.io/ggml-org/llama.cpp"
ANY_ADDRESS = "0.0.0.0"  # inside the container; the host's address is on the published port
OTHER_FILES = ("env_file", "extends")
"""Keys of a service whose settings are in other files."""
_NVIDIA = (
    "    deploy:",
    "      resources:",
    "        reservations:",
    "          devices:",
    "            - driver: nvidia",
    "              count: all",
    "              capabilities: [gpu]",
)


def render(request: ExportRequest) -> Exported:
    """A compose file; models keep their paths inside the container."""
    placed = with_absolute_paths(request)
    _, *words = serving(placed, host=ANY_ADDRESS)
    remarks = request_remarks(request)
    if request.uses_gpu:
        remarks = (
            *remarks,
            "the image is for NVIDIA cards: write server-rocm, server-vulkan or server-intel "
            "for others, with their devices",
        )
    lines = [
        "services:",
        "  llama-server:",
        f"    image: {IMAGE}:{'server-cuda' if request.uses_gpu else 'server'}",
        "    restart: unless-stopped",
        "    ports:",
        f"      - {_word(f'{request.host}:{request.port}:{request.port}')}",
        *_volumes(placed.configuration),
        "    command:",
        *(f"      - {_word(word)}" for word in words),
        *(_NVIDIA if request.uses_gpu else ()),
    ]
    top = heading(request, remarks, start="docker compose up -d")
    return Exported(comments(top) + "\n".join(lines) + "\n", remarks)


def is_compose(request: ImportRequest) -> bool:
    """Whether a text is a compose file."""
    return re.search(r"^[\"']?services[\"']?\s*:", request.text, re.MULTILINE) is not None


def read(request: ImportRequest) -> Imported:
    """The preset of one service's command and environment.

    Raises:
        ImportedFileError: there is no such service, or it sets nothing that a preset has.
    """
    from engine.presets.programs.yaml_tree import parse_yaml  # an export needs no parser

    tree = parse_yaml(request.text)
    services = tree.get("services") if isinstance(tree, dict) else None
    if not isinstance(services, dict):
        raise ImportedFileError("this compose file has no services")
    title = chosen(services, request.entry, "service")
    entry = services[title]
    fields = entry if isinstance(entry, dict) else {}
    reader = Reader()
    words = [*_words(fields.get("entrypoint")), *_words(fields.get("command"))]
    command = list(map(reader.interpolated, words))
    listed, left_out = _environment(fields.get("environment"))
    environment = {name: reader.interpolated(value) for name, value in listed.items()}
    left_out += [f"{key}: {_written(fields[key])}" for key in OTHER_FILES if key in fields]
    found = read_words(command, request.name, environment, reader.unset)
    return replace(
        found,
        source=f"the service {title} of a compose file",
        left_out=(*found.left_out, *left_out),
    )


def _word(word: str) -> str:
    """Quote a word of a compose file, where `$` starts a variable and is doubled."""
    return yaml_text(word.replace("$", "$$"))


def _volumes(configuration: Configuration) -> Iterator[str]:
    yield "    volumes:"
    for folder in _folders(configuration):
        path = _word(writable(str(folder)))
        yield "      - type: bind"
        yield f"        source: {path}"
        yield f"        target: {path}"
        yield "        read_only: true"


def _folders(configuration: Configuration) -> list[Path]:
    """The folders of all files, and those that links among them lead to."""
    files = [configuration.model_path, *configuration.lora_paths]
    if configuration.mmproj_path is not None:
        files.append(configuration.mmproj_path)
    if configuration.draft is not None:
        files.append(configuration.draft.model_path)
    rules = (configuration.sampling.json_schema, configuration.sampling.grammar)
    files += [Path(path) for path in rules if path]
    folders = {folder for file in files for folder in (file.parent, file.resolve().parent)}
    return sorted(folders)


def _words(command: "Node | None") -> list[str]:
    if isinstance(command, list):
        return [word for word in command if isinstance(word, str)]
    text = command if isinstance(command, str) else ""
    return [word for each in commands(text.replace("$", "\\$")) for word in each.words]


def _environment(listed: "Node | None") -> tuple[dict[str, str], list[str]]:
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


def _written(value: "Node") -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


FORMAT = Format(
    "compose",
    "docker compose with llama.cpp's image",
    lambda _: "compose.yaml",  # the name that docker compose looks for
    render,
    starts_server=True,
    recognises=is_compose,
    read=read,
)
