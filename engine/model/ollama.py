"""Names of the models in Ollama's store, whose files are named by digests.

A store (Ollama 0.12, `server/modelpath.go` and `manifest/manifest.go`) has
`manifests/HOST/NAMESPACE/MODEL/TAG`, a JSON text whose layers name files `blobs/sha256-HEX`.
"""

import re
import time
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path

from engine.files import read_bytes
from engine.parsing import parse_json
from engine.servers import saved_server, shown_origin

MANIFESTS, BLOBS = "manifests", "blobs"
STORE_FOLDERS = frozenset({MANIFESTS, BLOBS})  # the folders that make a store
MANIFEST_BYTES = 1 << 20
MANIFESTS_IN_ROOT = "*/*/*/*"  # host, namespace, model, tag
MAX_MANIFESTS = 4096
DEFAULT_HOST, DEFAULT_NAMESPACE = "registry.ollama.ai", "library"  # omitted in names
SUFFIXES = {
    "application/vnd.ollama.image.model": "",
    "application/vnd.ollama.image.projector": " mmproj",
    "application/vnd.ollama.image.adapter": " adapter",
}
"""Suffix of the model's name for each media type of a layer."""
NAMES_S = 10.0  # how long the names of a store are cached
DIGEST = re.compile(r"sha256[:-](?P<hex>[0-9a-f]{64})")


def stored_models(store: Path) -> Iterator[tuple[Path, str]]:
    """The model files of a store with their first names, such as `qwen3:8b`."""
    named: set[Path] = set()
    root = store / MANIFESTS
    for manifest in sorted(islice(root.glob(MANIFESTS_IN_ROOT), MAX_MANIFESTS)):
        host, namespace, *rest = manifest.relative_to(root).parts
        before = [host] if host != DEFAULT_HOST else []
        before += [namespace] if before or namespace != DEFAULT_NAMESPACE else []
        name = "/".join((*before, ":".join(rest)))
        for digest, suffix in _layers(manifest):
            path = store / BLOBS / f"sha256-{digest}"
            if path not in named and path.is_file():
                named.add(path)
                yield path, f"{name}{suffix}"


def model_name(path: Path) -> str:
    """The name of a model file: of its manifest in Ollama's store, else without its suffix."""
    if path.parent.name == BLOBS and DIGEST.fullmatch(path.name):
        period = int(time.monotonic() / NAMES_S)
        return _names_of(path.parent.parent, period).get(path.name, path.name)
    return path.stem


def model_title(address: str) -> str:
    """The shown name of a stored address: its name at the server, or of its file."""
    served = saved_server(address)
    if served is None:
        return model_name(Path(address))
    url, model = served
    return Path(model).name.removesuffix(".gguf") if model else shown_origin(url)


@lru_cache(maxsize=8)
def _names_of(store: Path, period: int) -> dict[str, str]:
    """The names of a store, cached for a period."""
    del period
    return {path.name: name for path, name in stored_models(store)}


def _layers(manifest: Path) -> Iterator[tuple[str, str]]:
    """Digest of each model file, and the suffix of its name."""
    try:
        content = parse_json(read_bytes(manifest, limit=MANIFEST_BYTES))
    except (OSError, ValueError):
        return
    layers = content.get("layers") if isinstance(content, dict) else None
    for layer in layers if isinstance(layers, list) else ():
        match layer:
            case {"mediaType": str(kind), "digest": str(digest)} if kind in SUFFIXES:
                if found := DIGEST.fullmatch(digest):
                    yield found["hex"], SUFFIXES[kind]
