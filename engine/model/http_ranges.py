"""Reads pieces of a file over HTTP, and never a whole one."""

import http.client
import io
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

from engine.errors import ModelFileError
from engine.model.remote_address import RemoteAddress, hub_token, origin_of

if TYPE_CHECKING:
    from typing_extensions import Buffer as WriteableBuffer

CONTENT_RANGE = re.compile(r"bytes (?P<start>\d+)-(?P<end>\d+)/(?P<total>\d+)$")
TIMEOUT_S = 20.0
"""How long a server may say nothing."""
LIMIT_S = 120.0
"""How long all headers of a model may take, from the first request to the last byte."""
READ_BYTES = 1 << 16
TOKENS_PAGE = "https://huggingface.co/settings/tokens"

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


class RangeClient:
    """Reads pieces of files, all of them before one moment, headers of answers included."""

    def __init__(
        self,
        *,
        progress: Progress | None = None,
        timeout_s: float = TIMEOUT_S,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._progress = progress
        self._timeout_s = timeout_s
        self._ends_at = time.monotonic() + limit_s

    def read(
        self,
        address: RemoteAddress,
        start: int,
        stop: int,
        *,
        url: str | None = None,
        known: Version | None = None,
    ) -> Piece | None:
        """The bytes from `start` up to `stop`, or up to the end of the file.

        Args:
            address: The file.
            start: First byte.
            stop: Byte behind the last one.
            url: Where the address led to before.
            known: None is the answer if the file is still this one.

        Raises:
            UnreachableError: no answer, or one that stops.
            RemoteFileError: the server refuses, or cannot give pieces.
        """
        request = urllib.request.Request(url or address.url)
        request.add_header("User-Agent", "kvchat")
        request.add_header("Range", f"bytes={start}-{stop - 1}")
        for name, value in (known.conditions if known else {}).items():
            request.add_header(name, value)
        is_own = address.is_hub and origin_of(request.full_url) == origin_of(address.url)
        token = hub_token() if is_own else None
        if token:
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        opener = urllib.request.build_opener(_Redirect(token), _Http(self._ends_at))
        try:
            with closing(opener.open(request, timeout=self._timeout_s)) as answer:
                return self._piece(address, answer, start, stop)
        except urllib.error.HTTPError as error:
            with closing(error):
                if error.code == http.client.NOT_MODIFIED and known is not None:
                    return None
                raise _refusal(address, error, has_token=token is not None) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _unreachable(address, error) from error

    def _piece(
        self, address: RemoteAddress, answer: http.client.HTTPResponse, start: int, stop: int
    ) -> Piece:
        end, total = _promised(address, answer, start, stop)
        data = bytearray()
        while (missing := end - start - len(data)) > 0:
            got = answer.read1(min(READ_BYTES, missing))
            if not got:
                raise UnreachableError(
                    f"{address.shown}: the connection ended at byte {start + len(data)}, "
                    f"{missing} bytes early: try again"
                )
            data += got
            if self._progress is not None:
                self._progress(address.file_name, start + len(data))
        told = answer.headers
        version = Version(told.get("ETag"), told.get("Last-Modified"), total)
        return Piece(start, bytes(data), version, answer.geturl())


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
        old, new = origin_of(req.full_url), origin_of(newurl)
        if new[0] not in ("https", old[0]):
            raise RemoteFileError(
                f"{old[1]} sends from {old[0]} on to {new[0] or 'nowhere'}: that is not followed; "
                "download the file and name its path"
            )
        fp.close()  # or urllib would read a body of any length
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and old == new and req.has_header("Authorization"):
            made.add_unredirected_header("Authorization", f"Bearer {self._token}")
        return made


def _promised(
    address: RemoteAddress, answer: http.client.HTTPResponse, start: int, stop: int
) -> tuple[int, int]:
    """The byte behind the last one that will come, and the size of the file."""
    if answer.status != http.client.PARTIAL_CONTENT:
        raise RemoteFileError(
            f"{address.shown}: the server answers {answer.status} with the whole file where a "
            "piece was asked for: it knows no ranges; download the file and name its path"
        )
    told = answer.headers.get("Content-Range")
    found = CONTENT_RANGE.match(told or "")
    if found is None or int(found["start"]) != start:
        raise RemoteFileError(
            f"{address.shown}: bytes from {start} on were asked for, the server names {told!r}: "
            "download the file and name its path"
        )
    total = int(found["total"])
    return min(stop, int(found["end"]) + 1, total), total


def _refusal(
    address: RemoteAddress, error: urllib.error.HTTPError, *, has_token: bool
) -> RemoteFileError:
    is_gated = error.headers.get("X-Error-Code") == "GatedRepo"
    match error.code:
        case 401 if not address.is_hub:
            why = "the server wants a login, which kvchat does not do: download the file"
        case 401 | 403 if is_gated:
            why = f"the model is gated: accept its terms at {address.page}" + (
                "" if has_token else f", and set HF_TOKEN ({TOKENS_PAGE})"
            )
        case 401 if not has_token:
            why = (
                "the repository is private, gated or not there (401): check its name, or set "
                f"HF_TOKEN ({TOKENS_PAGE})"
            )
        case 401:
            why = "the token was refused (401), or the repository is not there: renew HF_TOKEN"
        case 403:
            where = f" at {address.page}" if address.page else ""
            why = f"access is not allowed (403): ask for it{where}, or download the file otherwise"
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
