"""HTTP client that limits every answer in bytes and time and sends a key to one origin only.

The hub, headers of remote models, the starter model and the server backends use it. httpx is
imported with the first request because that takes 0.1 s.
"""

import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from engine.background import start_thread
from engine.errors import EngineError
from engine.parsing import parse_json
from engine.servers import LOOPBACK, origin_of

if TYPE_CHECKING:
    import httpx

MAX_REDIRECTS = 10
NEXT_PAGE = re.compile(r'<(?P<url>[^>]+)>;\s*rel="next"')
MAX_REASON = 500
"""Maximum characters of foreign text in a message."""
CHECK_EVERY_S = 1.0
REPORT_EVERY_S = 10.0
"""Interval of reports on an answer that makes no progress."""

Report = Callable[[str], None]
"""Called with a text about the wait, and with an empty text once there is progress."""


class HttpError(EngineError):
    """An answer cannot be used; the message is the reason, without the address."""


class UnreachableError(HttpError):
    """The connection failed or ended early."""


class SilentError(HttpError):
    """No progress within the limit."""


class Watch:
    """Cuts the connection of an answer that makes no progress for `limit_s`, from a thread.

    Received bytes are not progress: headers, comments and unfinished lines can go on for ever.
    """

    def __init__(self, url: str, limit_s: float, report: Report) -> None:
        self.is_over = False
        self.limit_s, self._url, self._report = limit_s, url, report
        self._socket: socket.socket | None = None
        self.is_cut = False
        self._since = time.monotonic()
        self._n_reports = 0
        self._has_ended = threading.Event()
        start_thread(self._run, name="http-watch", on_fault=lambda _: self.cut())

    def close(self) -> None:
        """End the thread."""
        self._has_ended.set()
        self.note_progress(self.limit_s)

    def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """Store the socket that httpcore opened; TLS replaces it."""
        if name in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = info["return_value"].get_extra_info("socket")
            if self.is_cut:
                self.cut()

    def cut(self) -> None:
        """End the connection, now or as soon as it is open."""
        self.is_cut = True
        if self._socket is not None:
            with suppress(OSError):  # SSLSocket.shutdown ends TLS: a read would return ciphertext
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def note_progress(self, limit_s: float) -> None:
        """Restart the wait with this limit."""
        self.limit_s, self._since = limit_s, time.monotonic()
        if self._n_reports:
            self._n_reports = 0
            self._report("")

    def silence(self) -> SilentError:
        """The error of a connection that was cut."""
        return SilentError(f"sent no data for {round(self.limit_s, 1):g} s")

    def _run(self) -> None:
        while not self._has_ended.wait(min(max(self._left_s(), 0.0), CHECK_EVERY_S)):
            silent_s = self.limit_s - self._left_s()
            if silent_s >= self.limit_s:
                self.is_over = True
                self.cut()
                return
            if silent_s >= REPORT_EVERY_S * (self._n_reports + 1):
                self._n_reports += 1
                self._report(
                    f"no data from {self._url} for {silent_s:.0f} s "
                    f"(kvchat gives up after {self.limit_s:g} s)"
                )

    def _left_s(self) -> float:
        return self._since + self.limit_s - time.monotonic()


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with status and headers whose body is not read yet."""

    status: int
    url: str
    """Address that answered, after all redirects."""
    headers: Mapping[str, str]
    chunks: Iterator[bytes]
    watch: Watch

    def body(self, limit: int) -> bytes:
        """The whole body; raises `HttpError` if it has more than `limit` bytes."""
        data = bytearray()
        for chunk in self.chunks:
            data += chunk
            if len(data) > limit:
                raise HttpError(f"sent more than the limit of {limit:,} bytes")
        return bytes(data)

    def json(self, limit: int) -> object:
        """The body as JSON; raises `HttpError` if it is invalid or has more than `limit` bytes."""
        try:
            return parse_json(self.body(limit))
        except ValueError as error:
            raise HttpError(f"sent invalid JSON ({error})") from error

    def next_page(self) -> str | None:
        """URL of the next page in the header `Link` (RFC 8288); raises `HttpError` as redirects."""
        link = NEXT_PAGE.search(self.headers.get("Link", ""))
        return _joined(self.url, link["url"]) if link else None

    def events(self, limit: int) -> Iterator[bytes]:
        """The data of each server-sent event, empty for a comment; an event has at most `limit`."""
        return events(lines(self.chunks, limit), limit)


class HttpClient:
    """Sends requests, each over its own connection; thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        follows_redirects: bool = False,
        connect_s: float = 20.0,
    ) -> None:
        """A client that sends `key` to the origin of `url` only."""
        self._origin, self._key = origin_of(url), key
        self._follows_redirects = follows_redirects
        self._connect_s = connect_s

    @contextmanager
    def request(
        self,
        method: str,
        url: str,
        *,
        limit_s: float,
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
        report: Report = lambda _: None,
        attach: Callable[[Callable[[], None]], None] = lambda _: None,
    ) -> Iterator[Answer]:
        """Send a request and yield the answer, which is readable within the block.

        Args:
            method: `GET` or `POST`.
            url: Address.
            limit_s: Limit in seconds without `Answer.watch.note_progress`, whatever arrives.
            headers: Further headers.
            body: JSON object to send.
            report: Called with texts about the wait.
            attach: Called first, with a function that cuts the connection.

        Raises:
            UnreachableError: the connection failed or ended.
            SilentError: no progress for `limit_s`.
            HttpError: an invalid address or certificate, a compressed answer, a refused redirect.
        """
        import httpx

        watch = Watch(url, limit_s, report)
        try:
            attach(watch.cut)
            with self._client(url, limit_s) as client:
                response = self._send(client, watch, method, url, headers, body)
                if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise HttpError("compresses its response, which kvchat does not accept")
                url, chunks = str(response.url), _chunks(response, watch)
                yield Answer(response.status_code, url, response.headers, chunks, watch)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # from the host name
            raise watch.silence() if watch.is_over else _reason(error, limit_s) from error
        except EngineError as error:
            if watch.is_over:
                raise watch.silence() from error
            raise
        else:
            if watch.is_over:  # a body without length ends where the connection is cut
                raise watch.silence()
        finally:
            watch.close()

    def _client(self, url: str, limit_s: float) -> "httpx.Client":
        import httpx

        needs_tls = url.startswith("https:") or self._follows_redirects
        files = (os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
        return httpx.Client(
            headers={"Accept-Encoding": "identity", "User-Agent": "kvchat"},
            verify=_certificates(*files) if needs_tls else False,
            timeout=httpx.Timeout(max(limit_s, 0.01), connect=self._connect_s),
            trust_env=origin_of(url)[1] not in LOOPBACK,
        )

    def _send(
        self,
        client: "httpx.Client",
        watch: Watch,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        body: Mapping[str, object] | None,
    ) -> "httpx.Response":
        for _ in range(MAX_REDIRECTS + 1):
            request = client.build_request(method, url, headers=headers, json=body)
            request.extensions["trace"] = watch.trace
            if self._key is not None and origin_of(url) == self._origin:
                request.headers["Authorization"] = f"Bearer {self._key}"
            response = client.send(request, stream=True)
            if not response.has_redirect_location:
                return response
            response.close()
            location = response.headers["Location"]
            if not self._follows_redirects:
                raise HttpError(
                    f"redirects to {one_line(location)}: kvchat sends no key to another host; use "
                    "the new address if you trust it"
                )
            url = _joined(str(response.url), location)
        raise HttpError("redirects in a loop")


def _joined(url: str, location: str) -> str:
    """Resolve a redirect; refuse one from https to http."""
    import httpx

    old = httpx.URL(url)
    new = old.join(location)
    if new.scheme not in ("https", old.scheme):
        raise HttpError(
            f"redirects from {old.scheme} to {new.scheme or 'nowhere'}, which kvchat "
            "does not follow: download the file with a browser and pass its path"
        )
    return str(new)


@cache
def _certificates(*_files: str | None) -> ssl.SSLContext:
    """The system's certificates, or those of the environment; takes 0.06 s."""
    return ssl.create_default_context()


def _chunks(response: "httpx.Response", watch: Watch) -> Iterator[bytes]:
    for chunk in response.iter_raw():
        if watch.is_cut:
            raise UnreachableError("the connection was cut")
        yield chunk


def _reason(error: Exception, limit_s: float) -> HttpError:
    import httpx

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    match error, cause:
        case _, ssl.SSLCertVerificationError():
            return HttpError(
                f"cannot be trusted: its certificate is not valid ({cause.verify_message}). "
                "Use the host name in the certificate, renew the certificate, or set "
                "SSL_CERT_FILE to the path of the certificate"
            )
        case _, ssl.SSLError():
            return HttpError(
                f"cannot be reached over TLS ({cause.reason}): write http:// if the server "
                "does not use TLS"
            )
        case httpx.ConnectTimeout(), _:
            return UnreachableError("the connection took too long")
        case httpx.TimeoutException(), _:
            return SilentError(f"sent no data for {limit_s:g} s")
        case httpx.TransportError(), _:
            text = re.sub(r"^\[Errno -?\d+\] ", "", one_line(str(error)))
            return UnreachableError(text or repr(error))
        case _:
            return HttpError(f"could not be resolved ({one_line(str(error))})")


def one_line(text: str) -> str:
    """Make foreign text printable on one line of at most `MAX_REASON` characters."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}..."


def lines(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """Split chunks into lines of at most `limit` bytes, without line ends."""
    rest = bytearray()
    for chunk in chunks:
        before, end, after = chunk.rpartition(b"\n")
        rest += before if end else after
        complete = rest.split(b"\n") if end else []
        rest = bytearray(after) if end else rest
        if any(len(line) > limit for line in complete) or len(rest) > limit:
            raise HttpError(f"sent more than {limit:,} bytes in one event")
        yield from (bytes(line.removesuffix(b"\r")) for line in complete)
    if rest:
        yield bytes(rest.removesuffix(b"\r"))


def events(read: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """The data of each complete event (WHATWG HTML §9.2.6); empty for a comment."""
    data: list[bytes] = []
    n_bytes = 0
    for line in read:
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
            n_bytes += len(data[-1]) + len(b"\n")  # empty lines count too
            if n_bytes > limit:
                raise HttpError(f"sent more than {limit:,} bytes in one event")
        elif not line:
            if data:
                yield b"\n".join(data)
            data, n_bytes = [], 0
        else:
            yield b""
