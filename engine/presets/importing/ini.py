"""The models preset of llama-server's router (`common/preset.cpp`, llama.cpp b11434)."""

import re
from collections.abc import Mapping

from engine.errors import shown
from engine.presets.importing.choice import chosen
from engine.presets.importing.given import from_pairs
from engine.presets.importing.imported import Imported, ImportedFileError
from engine.presets.importing.rules import preset_from

_HEADER = re.compile(r"\[([^\]]+)\]\s*(?:[;#].*)?")
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=([^;#]*)(?:[;#].*)?")
GLOBAL = "*"
OWN_KEYS = frozenset({"version", "load-on-startup", "stop-timeout", "dedup-cache-models"})
"""Keys of the preset itself: they are no flags of a server."""

Sections = dict[str, dict[str, str]]


def looks_like_ini(text: str) -> bool:
    """Whether the first line that says something is a section or the version."""
    for line in text.splitlines():
        if line.strip() and line.strip()[0] not in ";#":
            return _HEADER.fullmatch(line) is not None or line.startswith("version")
    return False


def read_ini(text: str, name: str | None, section: str | None) -> Imported:
    """Give the preset of one section, with what `[*]` says for all.

    Raises:
        ImportedFileError: it is not such a file, or there are several sections and none is named.
    """
    sections = _sections(text)
    shared = {**sections.pop("", {}), **sections.pop(GLOBAL, {})}
    if not sections:
        sections = {name or "models preset": {}}
    title = chosen(sections, section, "section")
    pairs = {**shared, **sections[title]}
    flags: Mapping[str, str] = {k: v for k, v in pairs.items() if k not in OWN_KEYS}
    return preset_from(
        from_pairs(flags.items()), name or title, f"section [{title}] of a models preset"
    )


def _sections(text: str) -> Sections:
    sections: Sections = {}
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in ";#":
            continue
        if match := _HEADER.fullmatch(line.rstrip()):
            current = match[1].strip()
            sections.setdefault(current, {})
        elif match := _PAIR.fullmatch(line.rstrip()):
            sections.setdefault(current, {})[match[1]] = match[2].strip(" \t")
        else:
            raise ImportedFileError(
                f"line {number} is neither a section nor `key = value`: {shown(stripped)}"
            )
    return sections
