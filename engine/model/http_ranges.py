"""Reads pieces of a file over HTTP, and never a whole one."""

import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import httpx

from engine.clock import in_time
from engine.errors import ModelFileError
from engine.model.addresses import RemoteAddress, hub_token
from engine.servers import origin_of

CONTENT_RANGE = re.compile(r"bytes (?P<start>\d{1,18})-(?P<end>\d{1,18})/(?P<total>\d{1,18})$")
TIMEOUT_S = 20.0
"""How long a server may say nothing."""
LIMIT_S = 120.0
"""How long all headers of a model may take, from the first request to the last byte."""
MOST_REDIRECTS = 10
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
class ByteRange:
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
    ) -> ByteRange | None:
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
        origin = url or address.url
        is_own = address.is_hub and origin_of(origin) == origin_of(address.url)
        token = hub_token() if is_own else None
        headers = {"Range": f"bytes={start}-{stop - 1}", **(known.conditions if known else {})}
        if token:
            headers["Authorization"] = f"Bearer {token}"

        def ask() -> ByteRange | None:
            with self._client() as client, client.stream("GET", origin, headers=headers) as answer:
                if answer.status_code == httpx.codes.NOT_MODIFIED and known is not None:
                    return None
                if not answer.is_success:
                    raise _refusal(address, answer, has_token=token is not None)
                return self._piece(address, answer, start, stop)

        try:
            return in_time(ask, max(self._ends_at - time.monotonic(), 0.0))
        except httpx.TooManyRedirects as error:
            raise RemoteFileError(f"{address.shown}: its redirects form a loop") from error
        except (OSError, httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # a host's name
            is_late = isinstance(error, TimeoutError | httpx.TimeoutException)
            said = "it did not answer in time" if is_late else str(error) or repr(error)
            raise UnreachableError(
                f"{address.shown} cannot be reached ({said}): check the address and the connection"
            ) from error

    def _client(self) -> httpx.Client:
        """A client that follows redirections; httpx gives the token to no other host."""
        return httpx.Client(
            headers={"User-Agent": "kvchat", "Accept-Encoding": "identity"},
            verify=_trusted(),
            timeout=self._timeout_s,
            follow_redirects=True,
            max_redirects=MOST_REDIRECTS,
            event_hooks={"response": [check_redirect]},
        )

    def _piece(
        self, address: RemoteAddress, answer: httpx.Response, start: int, stop: int
    ) -> ByteRange:
        end, total = _promised(address, answer, start, stop)
        data = bytearray()
        with suppress(httpx.RemoteProtocolError):  # it ended early, which is told below
            for chunk in answer.iter_raw():
                if time.monotonic() > self._ends_at:
                    raise TimeoutError
                data += chunk
                if self._progress is not None:
                    self._progress(address.file_name, start + len(data))
                if len(data) >= end - start:
                    break
        missing = end - start - len(data)
        if missing > 0:
            raise UnreachableError(
                f"{address.shown}: the connection ended at byte {start + len(data)}, "
                f"{missing} bytes early: try again"
            )
        version = Version(answer.headers.get("ETag"), answer.headers.get("Last-Modified"), total)
        return ByteRange(start, bytes(data[: end - start]), version, str(answer.url))


@cache
def _trusted() -> ssl.SSLContext:
    """The certificates that the system trusts, not those of a package."""
    return ssl.create_default_context()


class _Unread(httpx.SyncByteStream):
    """Stands for the body of an answer, which is closed and not read."""

    def __init__(self, body: httpx.SyncByteStream) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        return iter(())

    def close(self) -> None:
        self._body.close()


def check_redirect(answer: httpx.Response) -> None:
    """Refuse a redirection to anything but HTTP, and one that leaves the encryption.

    httpx reads the body of one that it follows, however long it is: it finds none here.
    """
    old, new = answer.url, answer.url.join(answer.headers.get("Location", ""))
    if answer.has_redirect_location and new.scheme not in ("https", old.scheme):
        raise RemoteFileError(
            f"{old.netloc.decode()} redirects from {old.scheme} to {new.scheme or 'nowhere'}, "
            "which is not followed: download the file and name its path"
        )
    if answer.has_redirect_location and isinstance(answer.stream, httpx.SyncByteStream):
        answer.stream = _Unread(answer.stream)


def _promised(
    address: RemoteAddress, answer: httpx.Response, start: int, stop: int
) -> tuple[int, int]:
    """The byte behind the last one that will come, and the size of the file."""
    if answer.status_code != httpx.codes.PARTIAL_CONTENT:
        raise RemoteFileError(
            f"{address.shown}: the server answers {answer.status_code} with the whole file: "
            "it does not support ranges; download the file and name its path"
        )
    told = answer.headers.get("Content-Range")
    found = CONTENT_RANGE.match(told or "")
    if found is None or int(found["start"]) != start:
        raise RemoteFileError(
            f"{address.shown}: bytes from {start} on were requested, the server sent {told!r}: "
            "download the file and name its path"
        )
    total = int(found["total"])
    return min(stop, int(found["end"]) + 1, total), total


def _refusal(address: RemoteAddress, answer: httpx.Response, *, has_token: bool) -> RemoteFileError:
    is_gated = answer.headers.get("X-Error-Code") == "GatedRepo"
    match answer.status_code:
        case 401 if not address.is_hub:
            why = "the server requires a login, which kvchat does not support: download the file"
        case 401 | 403 if is_gated:
            why = f"the model is gated: accept its terms at {address.page}" + (
                "" if has_token else f", and set HF_TOKEN ({TOKENS_PAGE})"
            )
        case 401 if not has_token:
            why = (
                "the repository is private, gated or does not exist (401): check its name, or set "
                f"HF_TOKEN ({TOKENS_PAGE})"
            )
        case 401:
            why = "the token was refused (401), or the repository does not exist: renew HF_TOKEN"
        case 403:
            where = f" at {address.page}" if address.page else ""
            why = f"access is denied (403): request it{where}, or download the file in another way"
        case 404 | 410 as status:
            why = f"the file does not exist ({status}): check repository, revision and file name"
        case 416:
            why = "the file is empty, or shorter than its header"
        case status if 300 <= status < 400:
            why = f"it is redirected to an address that kvchat does not read ({status})"
        case 429:
            why = "too many requests (429): wait some minutes"
        case status:
            return UnreachableError(f"{address.shown}: the server answers {status}: try later")
    return RemoteFileError(f"{address.shown}: {why}")
