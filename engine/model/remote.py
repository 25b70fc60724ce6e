"""Headers of remote models, read in ranges over HTTP and cached on disk."""

import contextlib
import datetime
import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from engine.errors import ModelFileError
from engine.files import read_bytes, replace_file
from engine.http import Answer, HttpClient, HttpError, SilentError, UnreachableError
from engine.model.gguf import MAX_HEADER_BYTES, GgufFile, HeaderReader, join_parts
from engine.model.hub import (
    CONTENT_RANGE,
    HF_PREFIX,
    endpoint,
    file_url,
    hub_client,
    is_offline,
    parse_hub_name,
    refusal,
)
from engine.parsing import parse_json
from engine.servers import origin_of

HF_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})
HF_PAGE = re.compile(
    r"^/(?P<repo>[^/]+/[^/]+)/(?:blob|resolve|raw)/(?P<revision>[^/]+)/(?P<file>.+)$"
)
SILENCE_S, LIMIT_S = 20.0, 120.0  # limits without a byte, and for all headers of a model
CHUNK_BYTES = 4 << 20  # a header has up to 10 MB, nearly all of it vocabulary: one to three ranges
PART_CHUNK_BYTES = 1 << 16  # further parts of a split model have little but their tensor table
MAX_CACHE_BYTES = 512 << 20

Progress = Callable[[str, int], None]  # called with the file's name and the received bytes


class RemoteFileError(ModelFileError):
    """A remote file that cannot be read."""

    title = "The remote model cannot be read"


class RemoteUnreachableError(RemoteFileError):
    """The remote server does not answer."""


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """The URL of one file."""

    url: str
    page: str | None = None  # page of its repository; None unless it is on the hub or its mirror

    @property
    def file_name(self) -> str:
        return unquote(urlsplit(self.url).path).rpartition("/")[2]

    @property
    def shown(self) -> str:
        """The URL without its query, which may have a secret."""
        return urlunsplit((*urlsplit(self.url)[:3], "", ""))

    def sibling(self, file_name: str) -> "RemoteAddress":
        parts = urlsplit(self.url)
        path = f"{parts.path.rpartition('/')[0]}/{quote(file_name)}"
        return replace(self, url=urlunsplit(parts._replace(path=path)))


def is_remote(name: str) -> bool:
    """Whether a name is a remote address."""
    return name.lower().startswith(("http://", "https://", HF_PREFIX))


def parse_address(name: str) -> RemoteAddress:
    """The file of a URL, of its page on the hub, or of an `hf:` name; raises `ModelFileError`."""
    if not name.lower().startswith(HF_PREFIX):
        return _parse_url(name)
    asked = parse_hub_name(name)
    if asked is None or asked.file is None:
        raise ModelFileError(
            f"{name!r} is not a hub file: write hf:owner/repository/file.gguf, with "
            "@revision at the end for a revision other than main"
        )
    return _on_hub(asked.repo, asked.file, asked.revision)


def _parse_url(name: str) -> RemoteAddress:
    try:
        parts = urlsplit(name)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ModelFileError(f"{name!r} is not a URL: {error}") from error
    if parts.username is not None or not host:
        raise ModelFileError(
            f"a URL with {'a user name' if host else 'no host'} is not supported: write it "
            "as https://host/folder/model.gguf"
        )
    is_hub = host in HF_HOSTS and port in (None, 80, 443)
    is_mirror = origin_of(name) == origin_of(endpoint())
    page = HF_PAGE.match(parts.path)
    if page is not None and (host in HF_HOSTS or is_mirror):
        return _on_hub(page["repo"], unquote(page["file"]), unquote(page["revision"]))
    path = quote(parts.path, safe="/%")
    # The token goes along, so it is never sent unencrypted.
    scheme, place = ("https", host) if is_hub else (parts.scheme, parts.netloc)
    url = urlunsplit((scheme, place, path, parts.query, ""))
    address = RemoteAddress(url, endpoint() if is_hub or is_mirror else None)
    if not path.lower().endswith(".gguf"):
        raise ModelFileError(
            f"{address.shown} does not end in .gguf: use the address of the file itself"
        )
    return address


def _on_hub(repo: str, file: str, revision: str) -> RemoteAddress:
    if not file.lower().endswith(".gguf"):
        raise ModelFileError(
            f"{file} of {repo} is not a GGUF file: choose a file that ends in .gguf"
        )
    return RemoteAddress(file_url(repo, file, revision), f"{endpoint()}/{repo}")


def read_remote(
    name: str,
    *,
    cache_folder: Path | None = None,
    progress: Progress = lambda *_: None,
    limit_s: float = LIMIT_S,
) -> GgufFile:
    """Read the header of a remote model, of every part if it is split; `path` is its bare name.

    `name` is a URL of a GGUF file or of its page on the hub, or `hf:owner/repository/file.gguf`. A
    header in `cache_folder` is used if it is unchanged, or if the server does not answer, as
    `origin` then reports.

    Raises:
        RemoteFileError: it cannot be read within `limit_s` seconds.
        ModelFileError: no address, or no usable GGUF file there.
    """
    address = parse_address(name)
    reader = _Reader(cache_folder, progress, time.monotonic() + limit_s)
    asked = reader.part(address, CHUNK_BYTES)
    file = join_parts(asked, lambda part: reader.part(address.sibling(part), PART_CHUNK_BYTES))
    return replace(file, origin=f"{address.shown}{reader.note}")


@dataclass(frozen=True, slots=True)
class CachedHeader:
    """First bytes of a file, and which version of it they belong to."""

    data: bytes = field(repr=False)
    etag: str | None
    nbytes: int  # size of the whole file
    saved: str  # day on which they were read
    url: str = ""  # address that answered


@dataclass(slots=True)
class _Reader:
    """Reads the parts of one model before `ends_at`."""

    folder: Path | None
    progress: Progress
    ends_at: float
    note: str = ""  # how old the header is if the server did not answer

    def part(self, address: RemoteAddress, chunk_bytes: int) -> GgufFile:
        cached = load_header(self.folder, address.url) if self.folder else None
        try:
            first = self._read(address, 0, chunk_bytes, cached)
        except RemoteUnreachableError:
            if cached is None:
                raise
            self.note = f" (header saved {cached.saved}; the server does not answer)"
            first = cached

        def more(start: int, stop: int) -> bytes:
            if start < len(first.data) or first is cached:
                return first.data[start:stop]
            found = self._read(replace(address, url=first.url), start, stop)
            if (found.etag, found.nbytes) != (first.etag, first.nbytes):
                raise RemoteFileError(
                    f"{address.shown} changed while its header was read: try again"
                )
            return found.data

        chunk_bytes = len(first.data) if first is cached else chunk_bytes
        reader = HeaderReader(Path(address.file_name), first.nbytes, more, chunk_bytes)
        file = reader.read()
        if self.folder is not None and first is not cached:
            data = bytes(reader.data[: file.header_sizes[0]])
            save_header(self.folder, address.url, replace(first, data=data))
        return file

    def _read(
        self, address: RemoteAddress, start: int, stop: int, cached: CachedHeader | None = None
    ) -> CachedHeader:
        """The bytes of a range, or up to the end of the file; `cached` if that is unchanged."""
        if address.page and is_offline():
            raise RemoteUnreachableError(
                f"{address.shown} is not downloaded while HF_HUB_OFFLINE is set: unset this "
                "variable"
            )
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        if cached is not None and cached.etag:
            headers["If-None-Match"] = cached.etag
        client = hub_client() if address.page else HttpClient(address.url, follows_redirects=True)
        try:
            with client.request(
                "GET", address.url, limit_s=self._left_s(), headers=headers
            ) as answer:
                if answer.status == 304 and cached is not None:
                    return cached
                return self._range(address, answer, start, stop)
        except (UnreachableError, SilentError) as error:
            raise RemoteUnreachableError(
                f"{address.shown} cannot be reached ({error}): check the address and the connection"
            ) from error
        except HttpError as error:
            raise RemoteFileError(f"{address.shown} {error}") from error

    def _range(self, address: RemoteAddress, answer: Answer, start: int, stop: int) -> CachedHeader:
        if answer.status != 206:
            kind = RemoteUnreachableError if answer.status >= 500 else RemoteFileError
            raise kind(f"{address.shown}: {refusal(answer, address.page)}")
        sent = answer.headers.get("Content-Range", "")
        match = CONTENT_RANGE.match(sent)
        if match is None or int(match["start"]) != start:
            raise RemoteFileError(
                f"{address.shown}: the server sent {sent!r} instead of the bytes from {start} on; "
                "download the file with a browser and pass its path"
            )
        total = int(match["total"])
        n_expected = min(stop, int(match["end"]) + 1, total) - start
        data = bytearray()
        for chunk in answer.chunks:
            data += chunk
            answer.watch.note_progress(self._left_s())
            self.progress(address.file_name, start + len(data))
            if len(data) >= n_expected:
                break
        if len(data) < n_expected:
            raise UnreachableError(f"the connection ended at byte {start + len(data)}")
        today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        etag = answer.headers.get("ETag")
        return CachedHeader(bytes(data[:n_expected]), etag, total, today, answer.url)

    def _left_s(self) -> float:
        return min(SILENCE_S, self.ends_at - time.monotonic())


def load_header(folder: Path, url: str) -> CachedHeader | None:
    """The cached header of an address; None if it is missing or damaged."""
    try:
        about, _, data = read_bytes(_cache_path(folder, url), limit=MAX_HEADER_BYTES).partition(
            b"\n"
        )
        found = parse_json(about)
    except (OSError, ValueError):
        return None
    match found:
        case [str() | None as etag, int(nbytes), str(saved), digest]:
            is_intact = digest == _digest(data) and nbytes >= len(data)
            return CachedHeader(data, etag, nbytes, saved) if is_intact else None
        case _:
            return None


def save_header(folder: Path, url: str, header: CachedHeader) -> None:
    """Cache a header and remove the oldest beyond `MAX_CACHE_BYTES`; disk errors are ignored."""
    text = json.dumps([header.etag, header.nbytes, header.saved, _digest(header.data)])
    with contextlib.suppress(OSError):
        replace_file(
            _cache_path(folder, url), [text.encode(), b"\n", header.data], is_durable=False
        )
        total = 0
        statuses = [(path.stat(), path) for path in folder.iterdir()]
        for status, path in sorted(statuses, key=lambda each: -each[0].st_mtime_ns):
            total += status.st_size
            if total > MAX_CACHE_BYTES:
                path.unlink(missing_ok=True)


def _cache_path(folder: Path, url: str) -> Path:
    """A name without the address, whose query may have a secret."""
    return folder / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.header"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
