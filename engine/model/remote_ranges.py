"""Reads pieces of a file over HTTP, and never a whole one."""

import http.client
import io
import math
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from engine.errors import ModelFileError
from engine.model.remote_address import RemoteAddress
from engine.model.remote_token import hub_token

if TYPE_CHECKING:
    from typing_extensions import Buffer as WriteableBuffer

CONTENT_RANGE = re.compile(r"bytes (?P<start>\d+)-(?P<end>\d+)/(?P<total>\d+)$")
TIMEOUT_S = 20.0
"""How long a server may say nothing."""
LIMIT_S = 120.0
"""How long all headers of a model may take, from the first request to the last byte."""
READ_BYTES = 1 << 16

Progress = Callable[[str, int], None]
"""Told the file's name and how many bytes have come."""


class RemoteFileError(ModelFileError):
    """A file on another machine that cannot be read."""

    title = "The remote model cannot be read"


class UnreachableError(RemoteFileError):
    """The other machine does not answer."""


@dataclass(frozen=True, slots=True)
class Version:
    """Which content an address had."""

    etag: str | None
    modified: str | None
    nbytes: int

    def is_same(self, other: "Version") -> bool:
        """Whether it is the same content: servers of one file may differ in its date."""
        return (self.etag, self.nbytes) == (other.etag, other.nbytes)

    @property
    def conditions(self) -> Mapping[str, str]:
        """Headers of a request that asks for something newer; none where it cannot be asked."""
        if self.etag:
            return {"If-None-Match": self.etag}
        return {"If-Modified-Since": self.modified} if self.modified else {}


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a file from `start` on."""

    start: int
    data: bytes
    version: Version
    url: str
    """Where they came from, behind all redirections."""


def fetch_piece(
    address: RemoteAddress,
    start: int,
    stop: int,
    *,
    url: str | None = None,
    known: Version | None = None,
    progress: Progress | None = None,
    timeout_s: float = TIMEOUT_S,
    ends_at: float = math.inf,
) -> Piece | None:
    """Give the bytes from `start` up to `stop`, or up to the end of the file.

    Args:
        address: The file.
        start: First byte.
        stop: Byte behind the last one.
        url: Where the address led to before.
        known: Give None if the file is still this one.
        progress: Told what has come.
        timeout_s: How long the server may say nothing.
        ends_at: Moment of `time.monotonic` at which the answer must be whole, headers and body.

    Raises:
        UnreachableError: no answer, or one that stops.
        RemoteFileError: the server refuses, or cannot give pieces.
    """
    request = urllib.request.Request(url or address.url)
    request.add_header("User-Agent", "kvchat")
    request.add_header("Range", f"bytes={start}-{stop - 1}")
    for name, value in (known.conditions if known else {}).items():
        request.add_header(name, value)
    is_own = address.is_hub and _root(request.full_url) == _root(address.url)
    token = hub_token() if is_own else None
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(_Redirect(token), _Http(ends_at))
    try:
        with closing(opener.open(request, timeout=timeout_s)) as answer:
            return _piece(address, answer, start, stop, progress)
    except urllib.error.HTTPError as error:
        with closing(error):
            if error.code == http.client.NOT_MODIFIED and known is not None:
                return None
            raise _refusal(address, error, has_token=token is not None) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _unreachable(address, error) from error


class _Stream(io.RawIOBase):
    """What a server sends, up to a moment: one that drips is as good as none."""

    def __init__(self, raw: io.RawIOBase, connection: socket.socket, ends_at: float) -> None:
        self._raw = raw
        self._connection = connection
        self._patience_s = connection.gettimeout() or TIMEOUT_S
        self._ends_at = ends_at

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int | None:
        left_s = self._ends_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(min(self._patience_s, left_s))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Http(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Opens connections whose answers end at a moment."""

    def __init__(self, ends_at: float) -> None:
        super().__init__()
        self._ends_at = ends_at

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connected, http.client.HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connected, http.client.HTTPSConnection), req)

    def _connected(
        self, kind: type[http.client.HTTPConnection], host: str, *, timeout: float
    ) -> http.client.HTTPConnection:
        made = kind(host, timeout=timeout)
        made.response_class = self._answer  # type: ignore[assignment]  # only called
        return made

    def _answer(
        self, connection: socket.socket, level: int = 0, method: str | None = None
    ) -> http.client.HTTPResponse:
        answer = http.client.HTTPResponse(connection, level, method)
        stream = _Stream(answer.fp.detach(), connection, self._ends_at)
        answer.fp = io.BufferedReader(stream)
        return answer


class _Redirect(urllib.request.HTTPRedirectHandler):
    """Follows with the range; the token stays with the host that it was meant for."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme not in ("https", old.scheme):
            raise RemoteFileError(
                f"{old.hostname} sends from {old.scheme} on to {new.scheme or 'nowhere'}: that is "
                "not followed; download the file and name its path"
            )
        fp.close()  # or urllib would read a body of any length
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        is_same_host = _root(req.full_url) == _root(newurl)
        if made is not None and is_same_host and req.has_header("Authorization"):
            made.add_unredirected_header("Authorization", f"Bearer {self._token}")
        return made


def _root(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _piece(
    address: RemoteAddress,
    answer: "http.client.HTTPResponse",
    start: int,
    stop: int,
    progress: Progress | None,
) -> Piece:
    if answer.status != http.client.PARTIAL_CONTENT:
        raise RemoteFileError(
            f"{address.shown}: the server answers {answer.status} with the whole file where a "
            "piece was asked for: it knows no ranges; download the file and name its path"
        )
    found = CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
    if found is None or int(found["start"]) != start:
        told = answer.headers.get("Content-Range")
        raise RemoteFileError(
            f"{address.shown}: bytes from {start} on were asked for, the server names {told!r}: "
            "download the file and name its path"
        )
    total = int(found["total"])
    wanted = min(stop, int(found["end"]) + 1, total) - start
    data = _read(address, answer, start, wanted, progress)
    headers = answer.headers
    version = Version(headers.get("ETag"), headers.get("Last-Modified"), total)
    return Piece(start, data, version, answer.geturl())


def _read(
    address: RemoteAddress,
    answer: "http.client.HTTPResponse",
    start: int,
    wanted: int,
    progress: Progress | None,
) -> bytes:
    data = bytearray()
    while len(data) < wanted:
        got = answer.read1(min(READ_BYTES, wanted - len(data)))
        if not got:
            raise UnreachableError(
                f"{address.shown}: the connection ended at byte {start + len(data)}, "
                f"{wanted - len(data)} bytes early: try again"
            )
        data += got
        if progress is not None:
            progress(address.file_name, start + len(data))
    return bytes(data)


def _refusal(
    address: RemoteAddress, error: urllib.error.HTTPError, *, has_token: bool
) -> RemoteFileError:
    is_gated = error.headers.get("X-Error-Code") == "GatedRepo"
    match error.code:
        case 401 if not address.is_hub:
            why = "the server wants a login, which kvchat does not do: download the file"
        case 401 | 403 if is_gated:
            why = f"the model is gated: accept its terms at {address.page}" + (
                "" if has_token else ", and set HF_TOKEN (https://huggingface.co/settings/tokens)"
            )
        case 401 if not has_token:
            why = (
                "the repository is private, gated or not there (401): check its name, or set "
                "HF_TOKEN (https://huggingface.co/settings/tokens)"
            )
        case 401:
            why = "the token was refused (401), or the repository is not there: renew HF_TOKEN"
        case 403:
            place = f" at {address.page}" if address.page else ""
            why = f"access is not allowed (403): ask for it{place}, or download the file otherwise"
        case 404 | 410:
            why = f"there is no such file ({error.code}): check repository, revision and file name"
        case 416:
            why = "the file is empty, or shorter than its header"
        case status if 300 <= status < 400:
            why = f"it is sent on in a circle, or to where nothing is read from ({status})"
        case 429:
            why = "too many requests (429): wait some minutes"
        case _:
            return UnreachableError(f"{address.shown}: the server answers {error.code}: try later")
    return RemoteFileError(f"{address.shown}: {why}")


def _unreachable(address: RemoteAddress, error: Exception) -> UnreachableError:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    said = "no answer in time" if isinstance(reason, TimeoutError) else str(reason) or repr(reason)
    return UnreachableError(
        f"{address.shown} cannot be reached ({said}): check the address and the connection"
    )
