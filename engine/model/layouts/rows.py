"""Tensor tables as text: one row names a tensor and its dimensions.

A row is `attn_q d q`: the tensor `attn_q.weight` of `d` by `q` elements. Names get `.weight` unless
they end in `.bias`, or in a dot (`ssm_a.` is the tensor `ssm_a`). A dimension is a number, the name
of a size, or a sum of products of those (`kv_rank+rot`, `2*d`).
"""

from collections.abc import Iterator, Mapping
from math import prod

Dimension = tuple[tuple[str | int, ...], ...]
"""A sum of products of sizes and numbers."""

Row = tuple[str, tuple[Dimension, ...]]
Rows = tuple[Row, ...]
Shape = tuple[str, tuple[int, ...]]
"""Name and dimensions of a tensor, the row length first."""


def rows(text: str) -> Rows:
    """Give the rows of a table, one for each line."""
    return tuple(_row(line.split()) for line in text.strip().splitlines())


def shapes(table: Rows, sizes: Mapping[str, int], prefix: str = "") -> Iterator[Shape]:
    """Give the tensors of a table for these sizes; `prefix` goes before every name."""
    for name, dimensions in table:
        yield prefix + name, tuple(_evaluate(dimension, sizes) for dimension in dimensions)


def _row(words: list[str]) -> Row:
    name = words[0]
    if name.endswith("."):
        name = name[:-1]
    elif not name.endswith(".bias"):
        name += ".weight"
    return name, tuple(_dimension(word) for word in words[1:])


def _dimension(word: str) -> Dimension:
    return tuple(tuple(_factor(part) for part in term.split("*")) for term in word.split("+"))


def _factor(part: str) -> str | int:
    return int(part) if part.isdigit() else part


def _evaluate(dimension: Dimension, sizes: Mapping[str, int]) -> int:
    return sum(
        prod(part if isinstance(part, int) else sizes[part] for part in term) for term in dimension
    )
