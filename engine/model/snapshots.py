"""The headers of the catalogue's models, without their vocabularies: one packed file.

`scripts/catalogue.py` writes it, from headers of files at Q8_0: what is `q8_0` there is what a
quantisation changes, and all other tensors keep their type in every file of the model.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import prod
from pathlib import Path

from engine.model.ggml_types import TYPES_BY_NAME, GgmlType
from engine.model.gguf import GgufFile
from engine.model.gguf_header import Value

SNAPSHOTS_PATH = Path(__file__).with_name("snapshots.json.gz")
LAYER = re.compile(r"blk\.(?P<layer>\d+)\.(?P<name>.+)")
SNAPSHOT_TYPE = "q8_0"
"""The type of the matrices that a quantisation changes."""
LEFT_OUT = ("general.", "tokenizer.", "split.", "quantize.")
"""Keys that are of one file and not of the model."""


@dataclass(frozen=True, slots=True)
class ShapedTensor:
    """One tensor of a snapshot."""

    name: str
    type: GgmlType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the header of a model's file at Q8_0 says; equal layers are written once.

    A tensor is written as its name, its type and its dimensions with spaces between them.
    """

    architecture: str
    n_vocab: int
    values: Mapping[str, Value]
    outside: list[str]
    """Tensors of no layer."""
    kinds: list[list[str]]
    """The tensors of each kind of layer, without the layer in their names."""
    layers: list[int]
    """The kind of each layer."""

    @property
    def n_parameters(self) -> int:
        """Elements of all tensors."""
        counts = Counter(self.layers)
        of_layers = (counts[kind] * _n_elements(rows) for kind, rows in enumerate(self.kinds))
        return _n_elements(self.outside) + sum(of_layers)

    def tensors(self) -> Iterator[ShapedTensor]:
        """Every tensor, those of the layers last."""
        yield from map(_tensor, self.outside)
        for layer, kind in enumerate(self.layers):
            yield from (_tensor(f"blk.{layer}.{row}") for row in self.kinds[kind])


@cache
def snapshots() -> Mapping[str, Snapshot]:
    """The snapshot of each model of the catalogue, by its name."""
    return unpack(SNAPSHOTS_PATH.read_bytes())


def unpack(data: bytes) -> dict[str, Snapshot]:
    """The snapshots that `pack` wrote."""
    found = json.loads(gzip.decompress(data))
    return {name: replace(Snapshot(**each), values=_values(each)) for name, each in found.items()}


def pack(found: Mapping[str, Snapshot]) -> bytes:
    """Snapshots as the bytes of a file; the same ones give the same bytes."""
    text = json.dumps({name: asdict(found[name]) for name in sorted(found)}, separators=(",", ":"))
    return gzip.compress(text.encode(), mtime=0)


def snapshot_of(file: GgufFile) -> Snapshot:
    """The snapshot of a header."""
    outside: list[str] = []
    layers: dict[int, list[str]] = {}
    for tensor in file.tensors:
        rest = f"{tensor.type.name} {' '.join(map(str, tensor.shape))}"
        match = LAYER.fullmatch(tensor.name)
        if match is None:
            outside.append(f"{tensor.name} {rest}")
        else:
            layers.setdefault(int(match["layer"]), []).append(f"{match['name']} {rest}")
    each_layer = [layers.get(index, []) for index in range(max(layers, default=-1) + 1)]
    kinds = [rows for index, rows in enumerate(each_layer) if rows not in each_layer[:index]]
    return Snapshot(
        architecture=file.architecture,
        n_vocab=file.n_vocab or 0,
        values={k: v for k, v in file.values.items() if not k.startswith(LEFT_OUT)},
        outside=outside,
        kinds=kinds,
        layers=[kinds.index(rows) for rows in each_layer],
    )


def _tensor(row: str) -> ShapedTensor:
    name, kind, *shape = row.split(" ")
    return ShapedTensor(name, TYPES_BY_NAME[kind], tuple(map(int, shape)))


def _n_elements(rows: Iterable[str]) -> int:
    return sum(prod(_tensor(row).shape) for row in rows)


def _values(read: Mapping[str, Mapping[str, Value | list[int]]]) -> dict[str, Value]:
    values = read["values"].items()
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values}
