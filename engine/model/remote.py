"""Headers of models that are not on this machine, read in pieces over HTTP."""

import datetime
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from engine.model.gguf import GgufFile, Part, read_parts
from engine.model.gguf_header import read_header
from engine.model.header_bytes import HeaderBytes
from engine.model.remote_address import RemoteAddress, parse_address
from engine.model.remote_cache import CachedHeader, RemoteCache
from engine.model.remote_ranges import (
    LIMIT_S,
    TIMEOUT_S,
    Piece,
    Progress,
    RemoteFileError,
    UnreachableError,
    fetch_piece,
)

CHUNK_BYTES = 4 << 20
"""A header takes up to 10 MB, nearly all of it vocabulary: one to three pieces."""
PART_CHUNK_BYTES = 1 << 16
"""The further parts of a split model hold little more than their tensor table."""


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
    reader = _Reader(RemoteCache(cache_folder), progress, timeout_s, time.monotonic() + limit_s)
    asked = reader.part(address, CHUNK_BYTES)
    file = read_parts(
        asked, lambda part: reader.part(address.sibling(part), PART_CHUNK_BYTES)
    )  # fmt: skip
    return replace(file, origin=_origin(address, reader.kept))


@dataclass(slots=True)
class _Reader:
    """Reads the parts of one model."""

    cache: RemoteCache
    progress: Progress | None
    timeout_s: float
    ends_at: float
    kept: str | None = None
    """Of which day the header is where the server could not be asked."""

    def part(self, address: RemoteAddress, chunk_bytes: int) -> Part:
        cached = self.cache.load(address.url)
        try:
            piece = self._first(address, chunk_bytes, cached)
        except UnreachableError:
            if cached is None:
                raise
            self.kept = f"header of {cached.saved}, the server cannot be asked now"
            return _of_cache(address, cached)
        if piece is None:
            assert cached is not None
            return _of_cache(address, cached)
        return self._rest(address, piece, chunk_bytes)

    def _first(
        self, address: RemoteAddress, chunk_bytes: int, cached: CachedHeader | None
    ) -> Piece | None:
        if address.is_hub and os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES"):
            raise UnreachableError(
                f"{address.shown} is not asked for while HF_HUB_OFFLINE is set: unset it"
            )
        return fetch_piece(
            address,
            0,
            chunk_bytes,
            known=cached.version if cached else None,
            progress=self.progress,
            timeout_s=self.timeout_s,
            ends_at=self.ends_at,
        )

    def _rest(self, address: RemoteAddress, first: Piece, chunk_bytes: int) -> Part:
        def more(start: int, stop: int) -> bytes:
            if start < len(first.data):
                return first.data[start:stop]
            piece = fetch_piece(
                address,
                start,
                stop,
                url=first.url,
                progress=self.progress,
                timeout_s=self.timeout_s,
                ends_at=self.ends_at,
            )
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
        return Part(Path(address.file_name), header, first.version.nbytes)


def _of_cache(address: RemoteAddress, cached: CachedHeader) -> Part:
    def more(start: int, stop: int) -> bytes:
        return cached.data[start:stop]

    nbytes = cached.version.nbytes
    header = read_header(HeaderBytes(address.file_name, nbytes, more, len(cached.data)))
    return Part(Path(address.file_name), header, nbytes)


def _origin(address: RemoteAddress, kept: str | None) -> str:
    return address.shown if kept is None else f"{address.shown} ({kept})"
