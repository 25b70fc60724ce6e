"""Headers of models that are not on this machine, read in pieces over HTTP and kept on disk."""

import contextlib
import datetime
import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from engine.files import NewestEntries, read_bytes, replace_file
from engine.model.addresses import RemoteAddress, parse_address
from engine.model.gguf import GgufFile, GgufPart, read_parts
from engine.model.gguf_header import MAX_HEADER_BYTES, HeaderBytes, read_header
from engine.model.http_ranges import (
    LIMIT_S,
    TIMEOUT_S,
    ByteRange,
    Progress,
    RangeClient,
    RemoteFileError,
    UnreachableError,
    Version,
)

CHUNK_BYTES = 4 << 20
"""A header takes up to 10 MB, nearly all of it vocabulary: one to three pieces."""
PART_CHUNK_BYTES = 1 << 16
"""The further parts of a split model hold little more than their tensor table."""
FORMAT = 2
ENTRY = "header"
MAX_CACHE_BYTES = 512 << 20
"""Older headers go when those that are kept take more; one takes up to 20 MiB."""


def read_remote(
    name: str,
    *,
    cache_folder: Path | None = None,
    progress: Progress | None = None,
    timeout_s: float = TIMEOUT_S,
    limit_s: float = LIMIT_S,
) -> GgufFile:
    """Read the header of a remote model, of every part where it is split.

    Args:
        name: A URL of a GGUF file, of its page on the Hugging Face hub, or
            `hf:owner/repository/file.gguf`, with `@revision` where it is not `main`.
        cache_folder: Keeps headers; one that the server says is unchanged is not asked for again,
            and one of a server that cannot be reached is used, which `origin` then says.
        progress: Told the file's name and the bytes that have come.
        timeout_s: How long the server may say nothing.
        limit_s: How long all may take.

    Returns:
        The header; `path` is the bare file name, `origin` says where it comes from.

    Raises:
        RemoteFileError: it cannot be had; the message says why and what to do.
        ModelFileError: no address, or no usable GGUF file behind it.
    """
    address = parse_address(name)
    client = RangeClient(progress=progress, timeout_s=timeout_s, limit_s=limit_s)
    reader = _RemoteReader(RemoteCache(cache_folder), client)
    asked = reader.part(address, CHUNK_BYTES)
    file = read_parts(
        asked, lambda part: reader.part(address.sibling(part), PART_CHUNK_BYTES)
    )  # fmt: skip
    kept = "" if reader.kept is None else f" ({reader.kept})"
    return replace(file, origin=f"{address.shown}{kept}")


@dataclass(frozen=True, slots=True)
class CachedHeader:
    """The bytes of a header, and which content of the address they belong to."""

    data: bytes
    version: Version
    saved: str
    """Day on which they were read."""


@dataclass(frozen=True, slots=True)
class AboutHeader:
    """What is kept beside the bytes of a header."""

    version: Version
    digest: str
    saved: str


class RemoteCache:
    """A folder of headers; without one nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, url: str) -> CachedHeader | None:
        """What is kept of an address; none where it is not there or damaged."""
        if self._folder is None:
            return None
        about, body = _cache_paths(self._folder, url)
        entry = _entry(about).read().get(ENTRY)
        try:
            data = read_bytes(body, limit=MAX_HEADER_BYTES)
        except OSError:
            return None
        if entry is None or entry.digest != _digest(data):
            return None
        return CachedHeader(data, entry.version, entry.saved)

    def save(self, url: str, header: CachedHeader) -> None:
        """Keep a header. What cannot be written is asked for again, nothing is lost."""
        if self._folder is None:
            return
        about, body = _cache_paths(self._folder, url)
        entry = AboutHeader(header.version, _digest(header.data), header.saved)
        with contextlib.suppress(OSError):
            replace_file(body, [header.data], is_durable=False)
            _entry(about).write({ENTRY: entry})
            _prune(self._folder, keep={about, body})


@dataclass(slots=True)
class _RemoteReader:
    """Reads the parts of one model."""

    cache: RemoteCache
    client: RangeClient
    kept: str | None = None
    """Of which day the header is where the server could not be asked."""

    def part(self, address: RemoteAddress, chunk_bytes: int) -> GgufPart:
        cached = self.cache.load(address.url)
        try:
            piece = self._first(address, chunk_bytes, cached)
        except UnreachableError:
            if cached is None:
                raise
            self.kept = f"header of {cached.saved}, the server does not answer now"
            return _of_cache(address, cached)
        if piece is None:
            assert cached is not None
            return _of_cache(address, cached)
        return self._rest(address, piece, chunk_bytes)

    def _first(
        self, address: RemoteAddress, chunk_bytes: int, cached: CachedHeader | None
    ) -> ByteRange | None:
        if address.is_hub and os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES"):
            raise UnreachableError(
                f"{address.shown} is not requested while HF_HUB_OFFLINE is set: unset it"
            )
        return self.client.read(address, 0, chunk_bytes, known=cached.version if cached else None)

    def _rest(self, address: RemoteAddress, first: ByteRange, chunk_bytes: int) -> GgufPart:
        def more(start: int, stop: int) -> bytes:
            if start < len(first.data):
                return first.data[start:stop]
            piece = self.client.read(address, start, stop, url=first.url)
            if piece is None or not piece.version.is_same(first.version):
                raise RemoteFileError(
                    f"{address.shown} changed while its header was read: read it again"
                )
            return piece.data

        source = HeaderBytes(address.file_name, first.version.nbytes, more, chunk_bytes)
        header = read_header(source)
        today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        kept = CachedHeader(bytes(source.data[: header.nbytes]), first.version, today)
        self.cache.save(address.url, kept)
        return GgufPart(Path(address.file_name), header, first.version.nbytes)


def _of_cache(address: RemoteAddress, cached: CachedHeader) -> GgufPart:
    def more(start: int, stop: int) -> bytes:
        return cached.data[start:stop]

    nbytes = cached.version.nbytes
    header = read_header(HeaderBytes(address.file_name, nbytes, more, len(cached.data)))
    return GgufPart(Path(address.file_name), header, nbytes)


def _entry(path: Path) -> NewestEntries[AboutHeader]:
    return NewestEntries(path, "headers", FORMAT, 1, AboutHeader)


def _cache_paths(folder: Path, url: str) -> tuple[Path, Path]:
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
