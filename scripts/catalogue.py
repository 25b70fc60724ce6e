"""Keeps the header of a published file as that of a catalogue's model.

    python scripts/catalogue.py NAME FILE

NAME is a model of `engine/model/catalog.toml`, FILE its GGUF file at Q8_0: a path, a URL or
`hf:owner/repository/file.gguf`, of which only the header is read. The keys and the tensors go to
`engine/model/snapshots.json.gz`; say in the entry's `source` and `checked` what the file was.

The first snapshots are of no published files: their tensors were worked out from each model's
`config.json` (its entry says which) by the rules of llama.cpp's loader (0c1e57098), which took all
of them in a dry run.
"""

import gzip
import json
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from engine.errors import EngineError, ModelFileError
from engine.model.architecture import architecture_of
from engine.model.catalog import CATALOG_PATH, SNAPSHOT_TYPE, SNAPSHOTS_PATH, Snapshot, unpack
from engine.model.gguf import GgufFile, read_gguf
from engine.model.remote import is_remote, read_remote

LAYER = re.compile(r"blk\.(?P<layer>\d+)\.(?P<name>.+)")
OF_ONE_FILE = ("general.", "tokenizer.", "split.", "quantize.")
"""Keys of one file and not of the model."""


def main(name: str, address: str) -> None:
    """Keep the snapshot of a model."""
    if name not in tomllib.loads(CATALOG_PATH.read_text(encoding="utf-8")):
        raise ModelFileError(f"{CATALOG_PATH.name} has no {name!r}: write its entry first")
    file = read_remote(address) if is_remote(address) else read_gguf(Path(address))
    _check(file)
    found = unpack(SNAPSHOTS_PATH.read_bytes())
    found[name] = snapshot_of(file)
    SNAPSHOTS_PATH.write_bytes(pack(found))
    print(f"{name}: {found[name].n_parameters:,} parameters in {len(file.tensors)} tensors")


def _check(file: GgufFile) -> None:
    """Refuse what is no model, or no file at Q8_0."""
    architecture_of(file)
    if file.file_type.lower() != SNAPSHOT_TYPE:
        raise ModelFileError(f"{file.path.name} is {file.file_type}: name the model's Q8_0 file")


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
        values={k: v for k, v in file.values.items() if not k.startswith(OF_ONE_FILE)},
        outside=outside,
        kinds=kinds,
        layers=[kinds.index(rows) for rows in each_layer],
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except EngineError as error:
        sys.exit(str(error))
