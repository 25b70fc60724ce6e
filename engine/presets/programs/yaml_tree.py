"""YAML of other programs as a tree in which every scalar is a string, read with bounds."""

import yaml

from engine.parsing import check_text
from engine.presets.programs.base import ImportedFileError

Node = str | list["Node"] | dict[str, "Node"]

MAX_CHARACTERS = 2**18
MAX_DEPTH = 40
MAX_NODES = 20_000
"""Nodes of the tree with its aliases written out."""
_MERGE = "<<"
_TAGS = "tag:yaml.org,2002:"


class _BoundedLoader(yaml.BaseLoader):
    """Counts what it composes: an alias counts as much as what it names."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._n_nodes = 0
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        self._n_nodes += 1
        before = self._n_nodes
        is_alias = self.check_event(yaml.AliasEvent)
        _check(self._depth <= MAX_DEPTH, f"it is nested deeper than {MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        assert node is not None
        if is_alias:
            _check(node in self._sizes, "an alias is inside what it names")
            self._n_nodes += self._sizes[node]
        _check(self._n_nodes <= MAX_NODES, f"it has more than {MAX_NODES:,} values")
        self._sizes[node] = self._n_nodes - before
        self._depth -= 1
        return node


def parse_yaml(text: str) -> Node:
    """The tree of a text, its aliases and merges written out.

    Raises:
        ImportedFileError: it is not valid, has several documents or a tag of its own, says a key
            twice, or goes beyond the bounds.
    """
    _check(len(text) <= MAX_CHARACTERS, f"it has more than {MAX_CHARACTERS:,} characters")
    try:
        root = yaml.compose(text, Loader=_BoundedLoader)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise ImportedFileError(f"this is not valid YAML: {reason}") from error
    return "" if root is None else _tree(root)


def _tree(node: yaml.Node) -> Node:
    line = node.start_mark.line + 1
    _check(
        node.tag.startswith(_TAGS), f"line {line} has the tag {node.tag}, which is not supported"
    )
    match node:
        case yaml.ScalarNode():
            return _whole_text(str(node.value), line)
        case yaml.SequenceNode():
            return [_tree(item) for item in node.value]
        case _:
            return _mapping(node)


def _mapping(node: yaml.Node) -> dict[str, Node]:
    own: dict[str, Node] = {}
    merged: dict[str, Node] = {}
    for key_node, value_node in node.value:
        key, value = _tree(key_node), _tree(value_node)
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise ImportedFileError(f"line {line} of this YAML has a key that is not text")
        if key == _MERGE:
            for other in value if isinstance(value, list) else [value]:
                merged = {**(other if isinstance(other, dict) else {}), **merged}
            continue
        _check(key not in own, f"line {line} has {key} twice")
        own[key] = value
    return {**merged, **own}


def _whole_text(text: str, line: int) -> str:
    try:
        check_text(text)
    except ValueError as error:
        raise ImportedFileError(f"line {line} of this YAML is not read: {error}") from error
    return text


def _check(is_fine: bool, problem: str) -> None:
    if not is_fine:
        raise ImportedFileError(f"this YAML is not read: {problem}")
