"""Save the header of a published file as the snapshot of a catalogue model.

    python scripts/catalogue.py NAME FILE

NAME is a model of `engine/model/catalog.toml`, FILE its GGUF file at Q8_0: a path, a URL or
`hf:owner/repository/file.gguf`, of which only the header is read. Its keys and tensors go to
`engine/model/snapshots.json.gz`; name the file in the entry's `source` and `checked`.

The first snapshots were computed from each model's `config.json`, which its entry names, by the
rules of llama.cpp's loader (0c1e57098), which accepted all of them in a dry run.
"""

import gzip
import json
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from engine.errors import EngineError, ModelFileError
from engine.model.architecture import architecture_of
from engine.model.catalog import CATALOG_PATH, SNAPSHOT_TYPE, SNAPSHOTS_PATH, CatalogEntry, unpack
from engine.model.gguf import GgufFile, read_gguf
from engine.model.remote import is_remote, read_remote

LAYER = re.compile(r"blk\.(?P<layer>\d+)\.(?P<name>.+)")
PACKED = ("architecture", "n_vocab", "values", "outside", "kinds", "layers")
OF_ONE_FILE = ("general.", "tokenizer.", "split.", "quantize.")
"""Keys of a file, which other files of the model do not have."""


def main(name: str, address: str) -> None:
    """Save the snapshot of a model."""
    if name not in tomllib.loads(CATALOG_PATH.read_text(encoding="utf-8")):
        raise ModelFileError(f"{CATALOG_PATH.name} has no {name!r}: write its entry first")
    file = read_remote(address) if is_remote(address) else read_gguf(Path(address))
    architecture_of(file)  # refuses a file that is no model
    if file.file_type.lower() != SNAPSHOT_TYPE:
        raise ModelFileError(f"{file.path.name} is {file.file_type}: name the model's Q8_0 file")
    found = unpack(SNAPSHOTS_PATH.read_bytes())
    found[name] = snapshot_of(name, file)
    SNAPSHOTS_PATH.write_bytes(pack(found))
    print(f"{name}: {found[name].n_parameters:,} parameters in {len(file.tensors)} tensors")


def pack(found: Mapping[str, CatalogEntry]) -> bytes:
    """The bytes of the snapshots' file, equal for equal snapshots."""
    headers = {name: {key: getattr(found[name], key) for key in PACKED} for name in sorted(found)}
    text = json.dumps(headers, separators=(",", ":"))
    return gzip.compress(text.encode(), mtime=0)


def snapshot_of(name: str, file: GgufFile) -> CatalogEntry:
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
    return CatalogEntry(
        name=name,
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
