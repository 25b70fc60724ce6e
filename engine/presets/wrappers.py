"""Files around a llama-server command: shell script, systemd, compose, router INI, llama-swap."""

import configparser
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.configuration import Configuration
from engine.files import expanded
from engine.presets import export, llama_server
from engine.presets.command import MAX_EXPANDED, Shell, lines_of
from engine.presets.export import Exported, ExportRequest, Format, Imported, ImportRequest
from engine.presets.fields import settings_of
from engine.presets.llama_server import read_words, serving

MAX_YAML = 2**18
"""Characters."""
MAX_ALIASES, MAX_MERGES, MAX_DEPTH = 100, 8, 3
MAX_MACRO_DEPTH = 10
_PREFIXES = "@-:+!|"
"""They change how systemd starts a program (systemd.service(5), `|` since version 258)."""
_UNIT = """[Unit]
Description=llama-server with {name}

[Service]
ExecStart={command}
Restart=on-failure
RestartSec=5

[Install]
WantedBy=default.target
"""
_COMPOSE = """services:
  llama-server:
    image: ghcr.io/ggml-org/llama.cpp:{image}
    restart: unless-stopped
    ports:
      - {address}
    volumes:
{volumes}    command:
{command}"""
_VOLUME = """      - type: bind
        source: {0}
        target: {0}
        read_only: true
"""
_NVIDIA = """    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: all
              capabilities: [gpu]
"""
_SWAP = """healthCheckTimeout: 600
models:
  {slug}:
    name: {name}
    cmd: |
{command}      --port ${{PORT}}
"""


def _around(
    request: ExportRequest, text: str, *more: str, start: str = "", mark: str = "#"
) -> Exported:
    """A text under its heading: name, how to start it, differences and warnings."""
    found = (*llama_server.differences(request), *more)
    title = f"{request.name}, planned by kvchat for {llama_server.BUILDS}"
    how = [f"start: {start}"] if start else []
    top = export.comments((title, *how, *found, *request.warnings), mark=mark)
    return Exported(top + text, found)


# --- command, shell script ---


def _render_command(request: ExportRequest) -> Exported:
    command = shlex.join(serving(request, has_address=False))
    return Exported(f"{command}\n", llama_server.differences(request))


def _render_script(request: ExportRequest) -> Exported:
    """A POSIX script; its own arguments go to llama-server, and win there."""
    words = lines_of(serving(export.with_absolute_paths(request)))
    body = " \\\n  ".join(map(shlex.join, words))
    exported = _around(request, f'exec {body} \\\n  "$@"\n')
    return replace(exported, text=f"#!/bin/sh\n{exported.text}")


def _read_script(request: ImportRequest) -> Imported:
    """The first command that starts a llama-server; the call of its function adds arguments."""
    functions = re.findall(r"^[ \t]*(?:function[ \t]+)?([\w-]+)[ \t]*\(\)", request.text, re.M)
    shell, has_command = Shell(), False
    started: tuple[tuple[str, ...], dict[str, str]] | None = None
    flags_only = started
    for words, environment in shell.commands(request.text):
        has_command = True
        if started is not None and words[0] in functions:
            return read_words((*started[0], *words[1:]), started[1])
        if started is None and llama_server.starts_server(words):
            started = (words, dict(environment))
        if started is not None and not functions:
            break
        if flags_only is None and words[0].startswith("-"):
            flags_only = (words, dict(environment))
    if (found := started or flags_only) is not None:
        return read_words(*found)
    if has_command or not any(name.startswith("LLAMA_ARG_") for name in shell.variables):
        raise export.ImportedFileError(
            "this is not a llama-server command line, a models preset, or a file of "
            "llama-swap, LM Studio, Ollama or koboldcpp: use one of those, or write the "
            "command after `--`"
        )
    return read_words([llama_server.PROGRAM], shell.variables)


# --- systemd ---


def _render_unit(request: ExportRequest) -> Exported:
    (program,), *rest = lines_of(serving(export.with_absolute_paths(request)))
    is_name = "/" not in program and program not in (".", "..")
    if not (is_name or program.startswith("/")) or program[0] in _PREFIXES:
        raise export.ExportError(
            f"systemd cannot start {program!r}: write its full path, without any of the "
            f"prefixes {' '.join(_PREFIXES)}"
        )
    lines = (" ".join(_unit_word(word.replace("$", "$$")) for word in line) for line in rest)
    command = " \\\n    ".join((_unit_word(program), *lines))
    text = _UNIT.format(name=export.writable(request.name).replace("%", "%%"), command=command)
    place = (
        f"systemd searches only /usr/local/bin and /usr/bin for {program}: if the program is "
        "elsewhere, write its full path"
    )
    unit = _UNIT_FILE(request)
    start = f"systemctl --user enable --now {unit}"
    exported = _around(request, text, *([place] if is_name else []), start=start)
    return replace(exported, install_path=expanded("~/.config/systemd/user") / unit)


def _unit_word(word: str) -> str:
    """Quote a word of `ExecStart=`, where `%` starts a specifier (systemd.syntax(7))."""
    doubled = word.replace("%", "%%")
    if re.fullmatch(r"[A-Za-z0-9_./:=,@+-]+", word):
        return doubled
    return '"' + doubled.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _read_unit(request: ImportRequest) -> Imported:
    text = request.text.replace("\\\n", " ")
    pairs = re.findall(r"^(\w+)[ \t]*=[ \t]*(.*)$", text, re.MULTILINE)
    started = next((value for key, value in pairs if key == "ExecStart"), "").lstrip(_PREFIXES)
    if not started:
        raise export.ImportedFileError("this systemd unit has no ExecStart")
    listed = [word for key, value in pairs if key == "Environment" for word in _split(value)]
    shell = Shell(dict(word.replace("%%", "%").split("=", 1) for word in listed if "=" in word))
    words: list[str] = []
    for word in _split(started):
        value = shell.expand(word).replace("%%", "%")
        words += value.split() if re.fullmatch(r"\$[A-Za-z_]\w*", word) else [value]
    files = [f"{key}={value}" for key, value in pairs if key == "EnvironmentFile"]
    found = read_words(words, shell.variables)
    source, left_out = "the command of a systemd unit", (*found.left_out, *files)
    return replace(found, source=source, left_out=left_out)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise export.ImportedFileError(
            f"{text[:80]!r} cannot be split into words: {error}"
        ) from error


# --- compose ---


def _render_compose(request: ExportRequest) -> Exported:
    """A compose file; models have the same paths in the container, which listens everywhere."""
    absolute = export.with_absolute_paths(request)
    _, *words = serving(absolute, host="0.0.0.0")
    folders = (export.writable(str(each)) for each in _folders(absolute.configuration))
    text = _COMPOSE.format(
        image="server-cuda" if request.uses_gpu else "server",
        address=_compose_word(f"{request.host}:{request.port}:{request.port}"),
        volumes="".join(_VOLUME.format(_compose_word(folder)) for folder in folders),
        command="".join(f"      - {_compose_word(word)}\n" for word in words),
    )
    cards = (
        "the image is for NVIDIA cards: for other cards, use the image server-rocm, "
        "server-vulkan or server-intel, and map its devices"
    )
    devices, more = (_NVIDIA, [cards]) if request.uses_gpu else ("", [])
    return _around(request, text + devices, *more, start="docker compose up -d")


def _yaml_text(text: str) -> str:
    """A double-quoted YAML scalar; every JSON string is one (YAML 1.2, §1.3)."""
    quoted = json.dumps(text, ensure_ascii=False)
    return export.UNWRITABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)


def _compose_word(word: str) -> str:
    return _yaml_text(word.replace("$", "$$"))


def _folders(configuration: Configuration) -> list[Path]:
    """The folders of all files, and those of the targets of links."""
    values = settings_of(configuration)
    keys = ("model", "mmproj", "draft.model", "sampling.json_schema", "sampling.grammar")
    files = [*configuration.lora_paths, *(Path(values[key]) for key in keys if values.get(key))]
    return sorted({folder for file in files for folder in (file.parent, file.resolve().parent)})


def _read_compose(request: ImportRequest) -> Imported:
    services = _table(parse_yaml(request.text), "services")
    title = export.chosen(services, request.entry, "service")
    service, shell = _table(services, title), Shell()
    words = [word for key in ("entrypoint", "command") for word in _words(service.get(key))]
    command = list(map(shell.expand, words))
    pairs = _table(service, "environment") or _pairs(service.get("environment"))
    set_here = {name: text for name, text in pairs.items() if text not in ("", "null", "~")}
    environment = {
        name: shell.expand(text) for name, text in set_here.items() if isinstance(text, str)
    }
    elsewhere = [
        f"{name} (its value is not in the file)"
        for name in pairs if name not in set_here and name.startswith("LLAMA_")
    ] + [
        f"{key}: {json.dumps(service[key], ensure_ascii=False)}"
        for key in ("env_file", "extends") if key in service
    ]  # fmt: skip
    found = read_words(command, environment)
    source, left_out = f"the service {title} of a compose file", (*found.left_out, *elsewhere)
    return replace(found, source=source, left_out=left_out)


def _words(value: object) -> list[str]:
    if isinstance(value, list):
        return [word for word in value if isinstance(word, str)]
    text = value.replace("$", "\\$") if isinstance(value, str) else ""
    return [word for each in Shell().commands(text) for word in each.words]


def _pairs(listed: object) -> dict[str, Any]:
    texts = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    return {name: text for name, _, text in (each.partition("=") for each in texts)}


# --- router INI ---


def _render_ini(request: ExportRequest) -> Exported:
    """An INI with one section; the router sets host and port itself."""
    configuration = export.with_absolute_paths(request).configuration
    keys = "".join(
        f"{words[0].removeprefix('--')} = {_ini_value([*words, 'true'][1])}\n"
        for words in llama_server.options(configuration)
    )
    start = f"llama-server --models-preset {_INI_FILE(request)} --port {request.port}"
    text = f"version = 1\n\n[{export.slug(request.name)}]\n{keys}"
    return _around(request, text, start=start, mark=";")


def _ini_value(text: str) -> str:
    if any(mark in export.writable(text) for mark in ";#") or text != text.strip():
        raise export.ExportError(
            f"values in llama-server's models preset cannot be quoted, but {text!r} contains `;` "
            "or `#`, or begins or ends with a space: rename the file, or link to it under another "
            "name"
        )
    return text


def _is_ini(request: ImportRequest) -> bool:
    """Whether the text begins with an INI section that is not systemd's, or with the version."""
    lines = (line.strip() for line in request.text.splitlines())
    first = next((line for line in lines if line and line[0] not in ";#"), "")
    header = r"\[(?!(?:Unit|Service|Install)\])[^]]+\]\s*([;#].*)?"
    return re.fullmatch(rf"version\s*=.*|{header}", first) is not None


def _read_ini(request: ImportRequest) -> Imported:
    """The preset of one section, with the keys of `[*]`; a `;` or `#` starts a comment anywhere."""
    parser = configparser.RawConfigParser(delimiters=("=",), strict=False, default_section="*")
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # as documented
    lines = [re.split("[;#]", line)[0].strip() for line in request.text.splitlines()]
    bad = (n for n, line in enumerate(lines, 1) if line and line[0] != "[" and "=" not in line)
    try:
        parser.read_string("\n".join(["[*]", *lines]))
    except configparser.Error as error:
        raise export.ImportedFileError(
            f"line {next(bad, 1)} is neither a section nor `key = value`"
        ) from error
    shared = dict(parser["*"])
    sections = {name: shared | dict(parser[name]) for name in parser.sections()}
    sections = sections or {"models preset": shared}
    title = export.chosen(sections, request.entry, "section")
    own = ("version", "load-on-startup", "stop-timeout", "dedup-cache-models")
    pairs = ((key, text) for key, text in sections[title].items() if key not in own)
    return llama_server.read_pairs(pairs, title, f"section [{title}] of a models preset")


# --- llama-swap ---


def _render_swap(request: ExportRequest) -> Exported:
    """A configuration with one model, which gets its port from llama-swap.

    It replaces macros in names and commands before it splits words (`config.go`, 00460400); an
    inner pair of quotes keeps `${` from being one.
    """
    *words, _, _ = serving(export.with_absolute_paths(request))
    lines = (shlex.join(line).replace("${", "$''{") for line in lines_of(words))
    text = _SWAP.format(
        slug=_yaml_text(export.slug(request.name)),
        name=_yaml_text(request.name.replace("${", "$ {")),
        command="".join(f"      {line}\n" for line in lines),
    )
    return _around(request, text, start=f"llama-swap --config {_SWAP_FILE(request)}")


def _read_swap(request: ImportRequest) -> Imported:
    tree = parse_yaml(request.text)
    models = _table(tree, "models")
    title = export.chosen(models, request.entry, "model")
    model = _table(models, title)
    if not isinstance(command := model.get("cmd"), str):
        raise export.ImportedFileError(f"the model {title} of this configuration has no cmd")
    macros = {**_macros(tree), **_macros(model), "MODEL_ID": title}
    lines = (line.rstrip().removesuffix("\\") for line in command.splitlines())
    plain = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    words = [word for each in Shell().commands(_expanded(plain, macros)) for word in each.words]
    found = read_words(words, _pairs(model.get("env")), title)
    return replace(found, source=f"the model {title} of llama-swap")


def _macros(value: object) -> dict[str, str]:
    pairs = _table(value, "macros").items()
    return {name: " ".join(text.split()) for name, text in pairs if isinstance(text, str)}


def _expanded(text: str, macros: Mapping[str, str]) -> str:
    for _ in range(MAX_MACRO_DEPTH):
        parts = re.split(r"\$\{([^{}]*)\}", text)
        parts[1::2] = [macros.get(name, f"${{{name}}}") for name in parts[1::2]]
        if sum(map(len, parts)) > MAX_EXPANDED:
            raise export.ImportedFileError(
                "the macros of this llama-swap configuration expand to more than "
                f"{MAX_EXPANDED:,} characters: write values instead of macros"
            )
        before, text = text, "".join(parts)
        if text == before:
            return text
    raise export.ImportedFileError(
        "the macros of this configuration refer to each other in a cycle"
    )


# --- YAML ---


def parse_yaml(text: str) -> Any:
    """The value of a YAML text, every scalar a string."""
    import yaml  # an export needs no parser

    class Loader(yaml.BaseLoader):
        n_aliases = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.n_aliases += self.check_event(yaml.AliasEvent)
            node = super().compose_node(parent, index)
            if self.n_aliases > MAX_ALIASES or (node is not None and node.tag[0] == "!"):
                raise yaml.YAMLError(f"it has a custom tag, or more than {MAX_ALIASES} aliases")
            return node

    if len(text) > MAX_YAML:
        raise export.ImportedFileError(f"this YAML has more than {MAX_YAML:,} characters")
    try:
        return yaml.load(text, Loader=Loader)
    except RecursionError as error:
        raise export.ImportedFileError("this YAML is nested too deeply") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise export.ImportedFileError(f"this is not valid YAML: {reason}") from error


def _table(value: Any, key: str, depth: int = 0) -> Any:
    """A table of a table with its merges (`<<`), of which the first counts; empty if it is none."""
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, dict):
        return {}
    listed = found.get("<<", [])
    sources = listed if isinstance(listed, list) else [listed]
    if depth > MAX_DEPTH or len(sources) > MAX_MERGES:
        raise export.ImportedFileError("this YAML merges too many mappings (`<<`)")
    merged: dict[str, Any] = {}
    for source in reversed(sources):
        merged |= _table({"": source}, "", depth + 1)
    return merged | {name: each for name, each in found.items() if name != "<<"}


def _matches(pattern: str, request: ImportRequest) -> bool:
    return re.search(pattern, request.text, re.MULTILINE) is not None


_UNIT_FILE, _INI_FILE = export.named_file(".service"), export.named_file(".ini")
_SWAP_FILE = export.named_file(".llama-swap.yaml")
FORMATS = tuple(
    replace(each, starts_server=True, has_comments=each.name != "llama-server")
    for each in (
        Format("llama-server", "llama-server on the command line", export.named_file(".txt"),
               _render_command, lambda _: False, _read_script),
        Format("shell", "shell script that starts llama-server", export.named_file(".sh"),
               _render_script, lambda _: False, _read_script),
        Format("systemd", "systemd service with llama-server", _UNIT_FILE, _render_unit,
               lambda request: _matches(r"^\[Service\]", request), _read_unit),
        Format("compose", "docker compose with llama.cpp's image", lambda _: "compose.yaml",
               _render_compose, lambda request: _matches(r"^[\"']?services[\"']?\s*:", request),
               _read_compose),
        Format("models-preset", "llama-server router, --models-preset INI", _INI_FILE,
               _render_ini, _is_ini, _read_ini),
        Format("llama-swap", "llama-swap YAML", _SWAP_FILE, _render_swap,
               lambda request: _matches(r"^[\"']?models[\"']?\s*:", request), _read_swap),
    )
)  # fmt: skip
