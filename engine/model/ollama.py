"""Models in Ollama's store, by the names that its manifests give to files called after digests.

A store (Ollama 0.12, `server/modelpath.go` and `manifest/manifest.go`) holds
`manifests/HOST/NAMESPACE/MODEL/TAG`, a JSON text whose layers name files `blobs/sha256-HEX`.
"""

import os
import re
import time
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path

from engine.files import read_bytes
from engine.parsing import parse_json
from engine.servers import kept_server, shown_origin

MANIFESTS, BLOBS = "manifests", "blobs"
MANIFEST_BYTES = 1 << 20
MANIFEST_DEPTH = 4
"""Folders of a manifest's path: host, namespace, model, tag."""
MAX_MANIFESTS = 4096
USUAL_HOST, USUAL_NAMESPACE = "registry.ollama.ai", "library"
"""What Ollama leaves out of a name."""
KINDS = {
    "application/vnd.ollama.image.model": "",
    "application/vnd.ollama.image.projector": " mmproj",
    "application/vnd.ollama.image.adapter": " adapter",
}
"""What a layer's file is, as it is said behind the model's name."""
NAMES_S = 10.0
"""For how long the names of a store are believed: others are pulled meanwhile."""
DIGEST = re.compile(r"sha256[:-](?P<hex>[0-9a-f]{64})")


PARTS_OF_A_STORE = frozenset({MANIFESTS, BLOBS})
"""The folders by which a store is known."""


def stored_models(store: Path) -> Iterator[tuple[Path, str]]:
    """The model files of a store and their names, as `qwen3:8b`; broken manifests name none.

    A file of several names has the first of them in the order of the alphabet.
    """
    named: set[Path] = set()
    for manifest in _manifests(store / MANIFESTS):
        name = _name(manifest.relative_to(store / MANIFESTS).parts)
        for digest, suffix in _layers(manifest):
            path = store / BLOBS / f"sha256-{digest}"
            if path not in named and path.is_file():
                named.add(path)
                yield path, f"{name}{suffix}"


def model_name(path: Path) -> str:
    """What a model file is called: by its manifest in Ollama's store, else without its ending."""
    if path.parent.name == BLOBS and DIGEST.fullmatch(path.name):
        period = int(time.monotonic() / NAMES_S)
        return _names_of(path.parent.parent, period).get(path.name, path.name)
    return path.stem


def model_title(address: str) -> str:
    """The model of a kept address as it is shown: its name at the server, or what its file is."""
    kept = kept_server(address)
    if kept is None:
        return model_name(Path(address))
    url, model = kept
    return Path(model).name.removesuffix(".gguf") if model else shown_origin(url)


@lru_cache(maxsize=8)
def _names_of(store: Path, period: int) -> dict[str, str]:
    """The names of a store; each period reads them again."""
    del period
    return {path.name: name for path, name in stored_models(store)}


def _manifests(folder: Path) -> list[Path]:
    """The manifests below a folder in the order of their names, `MAX_MANIFESTS` at most."""
    return sorted(islice(_files(folder, MANIFEST_DEPTH), MAX_MANIFESTS))


def _files(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            for entry in islice(entries, MAX_MANIFESTS):
                if depth > 1 and entry.is_dir(follow_symlinks=False):
                    yield from _files(Path(entry.path), depth - 1)
                elif depth == 1 and entry.is_file():
                    yield Path(entry.path)
    except OSError:
        return  # gone, or not ours to read: it names nothing that could be loaded


def _layers(manifest: Path) -> Iterator[tuple[str, str]]:
    """Digest and kind of each file of a model."""
    try:
        content = parse_json(read_bytes(manifest, limit=MANIFEST_BYTES))
    except (OSError, ValueError):
        return
    layers = content.get("layers") if isinstance(content, dict) else None
    for layer in layers if isinstance(layers, list) else ():
        match layer:
            case {"mediaType": str(kind), "digest": str(digest)} if kind in KINDS:
                if found := DIGEST.fullmatch(digest):
                    yield found["hex"], KINDS[kind]
            case _:
                continue


def _name(parts: tuple[str, ...]) -> str:
    host, namespace, model, tag = parts
    before = [host] if host != USUAL_HOST else []
    if before or namespace != USUAL_NAMESPACE:
        before.append(namespace)
    return f"{'/'.join((*before, model))}:{tag}"
