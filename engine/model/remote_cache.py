"""Headers of remote models on disk, by address: read again without asking for them whole."""

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.files import RECORDS_BYTES, read_bytes, replace_file
from engine.model.header_bytes import MAX_HEADER_BYTES
from engine.model.remote_ranges import Version
from engine.parsing import parse_json

FORMAT = 1
MAX_CACHE_BYTES = 512 << 20
"""Older headers go when those that are kept take more; one takes up to 20 MiB."""


@dataclass(frozen=True, slots=True)
class CachedHeader:
    """The bytes of a header, and which content of the address they belong to."""

    data: bytes
    version: Version
    saved: str
    """Day on which they were read."""


class RemoteCache:
    """A folder of headers; without one nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, url: str) -> CachedHeader | None:
        """Give what is kept of an address; none where it is not there or damaged."""
        if self._folder is None:
            return None
        about, body = _paths(self._folder, url)
        try:
            found = parse_json(read_bytes(about, limit=RECORDS_BYTES))
            data = read_bytes(body, limit=MAX_HEADER_BYTES)
        except (OSError, ValueError):
            return None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            return None
        version = _version(found.get("version"))
        if version is None or found.get("digest") != _digest(data):
            return None
        return CachedHeader(data, version, str(found.get("saved")))

    def save(self, url: str, header: CachedHeader) -> None:
        """Keep a header. What cannot be written is asked for again, nothing is lost."""
        if self._folder is None:
            return
        about, body = _paths(self._folder, url)
        content = {
            "format": FORMAT,
            "version": asdict(header.version),
            "digest": _digest(header.data),
            "saved": header.saved,
        }
        with contextlib.suppress(OSError):
            replace_file(body, [header.data], is_durable=False)
            replace_file(about, [json.dumps(content).encode()], is_durable=False)
            _prune(self._folder, keep={about, body})


def _version(kept: object) -> Version | None:
    match kept:
        case {"etag": str() | None as etag, "modified": str() | None as modified, "nbytes": int(n)}:
            return Version(etag, modified, n)
        case _:
            return None


def _paths(folder: Path, url: str) -> tuple[Path, Path]:
    # The name tells nothing of the address, whose query may hold a secret.
    name = hashlib.sha256(url.encode()).hexdigest()[:32]
    return folder / f"{name}.json", folder / f"{name}.header"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _prune(folder: Path, keep: set[Path]) -> None:
    files = [(path.stat(), path) for path in folder.iterdir() if path not in keep]
    total = sum(path.stat().st_size for path in keep)
    for status, path in sorted(files, key=lambda item: item[0].st_mtime, reverse=True):
        total += status.st_size
        if total > MAX_CACHE_BYTES:
            path.unlink(missing_ok=True)
