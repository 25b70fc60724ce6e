"""The part of YAML that llama-swap and compose files use: mappings, lists, scalars, blocks.

No anchors, no tags, no flow mappings with several lines: what is beyond it stays text.
"""

import json
import re
from dataclasses import dataclass

from engine.presets.importing.imported import ImportedFileError

Node = str | list["Node"] | dict[str, "Node"]

_KEY = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#"'&*!|>%@`\[\]{},-][^#]*?|-\S[^#]*?)\s*:(?:\s+(.*))?$"""
)
_BLOCK = re.compile(r"([|>])([+-]?\d?|\d[+-]?)\s*(?:#.*)?")


@dataclass(slots=True)
class _Lines:
    lines: list[str]
    place: int = 0

    def peek(self) -> tuple[int, str] | None:
        """Give indentation and text of the next line that says something."""
        while self.place < len(self.lines):
            line = self.lines[self.place]
            text = line.strip()
            if text and not text.startswith("#") and text not in ("---", "..."):
                return len(line) - len(line.lstrip(" ")), text
            self.place += 1
        return None


def parse_yaml(text: str) -> Node:
    """Give the tree of a text; every scalar is a string.

    Raises:
        ImportedFileError: a line is neither a key nor a list's element.
    """
    if "\t" in re.sub(r"[^\n\t ].*", "", text):
        raise ImportedFileError("this is not valid YAML: a line is indented with tabs")
    lines = _Lines(text.splitlines())
    first = lines.peek()
    return "" if first is None else _node(lines, first[0])


def _node(lines: _Lines, indent: int) -> Node:
    first = lines.peek()
    if first is not None and (first[1].startswith("- ") or first[1] == "-"):
        return _list(lines, indent)
    return _mapping(lines, indent)


def _mapping(lines: _Lines, indent: int) -> dict[str, Node]:
    found: dict[str, Node] = {}
    while (here := lines.peek()) is not None and here[0] == indent:
        match = _KEY.fullmatch(here[1])
        if match is None:
            raise ImportedFileError(f"line {lines.place + 1} is no YAML that is read: {here[1]!r}")
        lines.place += 1
        found[str(_scalar(match[1]))] = _value(lines, indent, match[2] or "")
    _check_depth(lines, indent)
    return found


def _list(lines: _Lines, indent: int) -> list[Node]:
    found: list[Node] = []
    while (here := lines.peek()) is not None and here[0] == indent and here[1][:1] == "-":
        rest = here[1][1:].lstrip()
        if _KEY.fullmatch(rest) and rest[0] not in "\"'":
            inner = indent + len(here[1]) - len(rest)
            lines.lines[lines.place] = " " * inner + rest
            found.append(_mapping(lines, inner))
        else:
            lines.place += 1
            found.append(_value(lines, indent, rest))
    return found


def _check_depth(lines: _Lines, indent: int) -> None:
    here = lines.peek()
    if here is not None and here[0] > indent:
        raise ImportedFileError(f"line {lines.place + 1} is indented too far: {here[1]!r}")


def _value(lines: _Lines, indent: int, rest: str) -> Node:
    if match := _BLOCK.fullmatch(rest):
        return _block(lines, indent, folds=match[1] == ">")
    if not rest or rest.startswith("#"):
        here = lines.peek()
        if here is None:
            return ""
        is_list_below = here[0] == indent and here[1].startswith("-")
        return _node(lines, here[0]) if here[0] > indent or is_list_below else ""
    if rest[0] in "\"'[{":
        return _scalar(_without_comment(rest))
    return _scalar(" ".join([_without_comment(rest), *_continued(lines, indent)]))


def _block(lines: _Lines, indent: int, *, folds: bool) -> str:
    taken: list[str] = []
    while lines.place < len(lines.lines):
        line = lines.lines[lines.place]
        if line.strip() and len(line) - len(line.lstrip(" ")) <= indent:
            break
        taken.append(line)
        lines.place += 1
    depth = min((len(line) - len(line.lstrip(" ")) for line in taken if line.strip()), default=0)
    return (" " if folds else "\n").join(line[depth:] for line in taken)


def _continued(lines: _Lines, indent: int) -> list[str]:
    """Take the further lines of a plain scalar."""
    taken = []
    while (here := lines.peek()) is not None and here[0] > indent:
        taken.append(here[1])
        lines.place += 1
    return taken


def _without_comment(text: str) -> str:
    if text[0] in "\"'":
        closing = re.match(r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')""", text)
        return closing[1] if closing else text
    return re.sub(r"\s+#.*$", "", text)


def _scalar(text: str) -> Node:
    if text.startswith('"'):
        try:
            value: object = json.loads(text)
        except json.JSONDecodeError:
            return text.strip('"')
        return str(value)
    if text.startswith("'") and text.endswith("'") and len(text) > 1:
        return text[1:-1].replace("''", "'")
    if text.startswith("[") and text.endswith("]"):
        return _flow_list(text[1:-1])
    return text


def _flow_list(inner: str) -> list[Node]:
    parts = re.findall(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^,]+)\s*(?:,|$)""", inner)
    return [_scalar(part.strip()) for part in parts if part.strip()]
