"""Requests to one server: bounded, timed, never sent on to another host, with the key kept back."""

import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import httpx

from engine.errors import ContextFullError, ServerError
from engine.model.addresses import KEY_VARIABLE, key_of, origin_of, shown_origin
from engine.model.http_ranges import Connection
from engine.parsing import parse_json
from engine.requests import Cancellation

MAX_BODY = 1 << 23
"""Most bytes of an answer that is no stream."""
MAX_ERROR = 1 << 16
MAX_EVENT = 1 << 22
"""Most bytes of one event of a stream: a server repeats a prompt of 100,000 tokens in less."""
MOST_TOLD = 300
"""Characters of a server's own words that a message repeats."""
MOST_REDIRECTS = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})
X509_EXPIRED, X509_OTHER_NAME, X509_OTHER_ADDRESS = 10, 62, 64
"""Why OpenSSL refuses a certificate (`X509_V_ERR_...`, x509_vfy.h)."""
READ_EVERY_S = 0.05
"""How often a running stream is read: what came meanwhile is read at once, so that a quick server
wakes this process no more often than a slow one."""
WAITED_S = 0.001
"""A part of a stream that takes longer was not there yet."""
CONTEXT_WORDS = (
    "exceed_context_size",
    "context_length_exceeded",
    "maximum context length",
    "the model's context length",
)
"""How servers say that a prompt is too long: llama-server 0c1e570, OpenAI, vLLM 0.32, SGLang 0.5.
"""


class TooLongError(ValueError):
    """A line or an event that does not end within its bound."""


class ServerUnreachableError(ServerError):
    """It does not answer, or ended the connection: it may answer when it is asked again."""


class ServerBusyError(ServerUnreachableError):
    """It is loading its model, or has too much to do, and says so."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a server may take, in seconds."""

    connect_s: float = 5.0
    answer_s: float = 20.0
    """For what needs no computing."""
    first_s: float = 600.0
    """From a request to the first sign of its reply: a long prompt on a slow machine."""
    silence_s: float = 120.0
    """Between two signs of a reply that runs."""
    loading_s: float = 300.0
    """How long a server may load its model."""
    pauses_s: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    """Waits before a request is sent once more; none is, once a token came."""


class Http:
    """One server. Several threads may ask at once."""

    def __init__(self, url: str, limits: Limits) -> None:
        """Without a connection yet.

        Raises:
            ServerError: its key cannot be sent.
        """
        self.url = url
        self.name = shown_origin(url)
        """As messages call it."""
        self.limits = limits
        self._key = key_of(url)
        headers = {"accept-encoding": "identity", "user-agent": "kvchat"}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        # The certificates that the system trusts, not those of a package.
        verify = ssl.create_default_context() if url.startswith("https:") else False
        self._client = httpx.Client(headers=headers, verify=verify)
        # A reply has a connection of its own, which is cut where it is stopped.
        self._streams = httpx.Client(
            headers=headers, verify=verify, limits=httpx.Limits(max_keepalive_connections=0)
        )

    @property
    def has_key(self) -> bool:
        """Whether it is asked with a key."""
        return self._key is not None

    def close(self) -> None:
        """End every connection."""
        self._client.close()
        self._streams.close()

    def get(self, path: str) -> bytes:
        """What lies at a path.

        Raises:
            ServerError: it cannot be had.
        """
        url = self.url + path
        for _ in range(MOST_REDIRECTS + 1):
            with self._asked("GET", url, None, self.limits.answer_s) as response:
                if response.status_code not in REDIRECTS:
                    return self._body(response)
                url = urljoin(url, response.headers.get("location", ""))
        raise ServerError(f"{self.name} sends from address to address: name the last one")

    def get_json(self, path: str) -> Mapping[str, object]:
        """The JSON object at a path.

        Raises:
            ServerError: it cannot be had, or is none.
        """
        return self._object(self.get(path), path)

    def post_json(
        self, path: str, body: Mapping[str, object], *, is_computed: bool = False
    ) -> Mapping[str, object]:
        """The JSON object that a question is answered with.

        Args:
            path: What is asked.
            body: The question.
            is_computed: Whether the model reads a text for it, which may take as long as a prompt.

        Raises:
            ServerError: there is no such answer.
            ContextFullError: the prompt is longer than the context.
        """
        answer_s = self.limits.first_s if is_computed else self.limits.answer_s
        with self._asked("POST", self.url + path, body, answer_s) as response:
            return self._object(self._body(response), path)

    def stream(
        self,
        path: str,
        body: Mapping[str, object],
        cancellation: Cancellation,
        *,
        is_sse: bool = True,
    ) -> Iterator[Mapping[str, object]]:
        """The events of a running reply, until the server or `cancellation` ends it.

        Cancelling cuts the connection, by which servers know that nobody waits any more.

        Args:
            path: What is asked.
            body: The request.
            cancellation: Ends it from any thread.
            is_sse: Whether events come as server-sent events (WHATWG HTML §9.2), else as a JSON
                text a line.

        Raises:
            ServerError: it cannot be had, breaks off, or is no such stream.
            ContextFullError: the prompt is longer than the context.
        """
        connection = Connection()
        cancellation.attach(connection.cut)
        try:
            if cancellation.is_cancelled:
                return
            first_s = self.limits.first_s
            with self._asked("POST", self.url + path, body, first_s, connection) as response:
                if response.status_code != httpx.codes.OK:
                    self._body(response)
                    raise ServerError(f"{self.name} answers {response.status_code} with no reply")
                yield from self._objects(response, path, is_sse=is_sse)
        finally:
            cancellation.detach()

    def _objects(
        self, response: httpx.Response, path: str, *, is_sse: bool
    ) -> Iterator[Mapping[str, object]]:
        read = lines(parts_as_they_come(response.iter_raw()), limit=MAX_EVENT)
        sign_at, limit_s = time.monotonic(), self.limits.first_s
        try:
            for data in events(read) if is_sse else read:
                now = time.monotonic()
                if not data:
                    # A comment keeps the connection open; it is no sign of the reply.
                    if now - sign_at > limit_s:
                        raise ServerUnreachableError(
                            f"{self.name} keeps the connection open and says nothing for "
                            f"{limit_s:g} s: see what it is doing"
                        )
                    continue
                sign_at, limit_s = now, self.limits.silence_s
                if data == b"[DONE]":
                    return
                yield self._object(data, path)
        except TooLongError as error:
            raise ServerError(
                f"{self.name} sent {error} in one event of {path}, which no reply has: this is "
                "no language model's server, or it is broken"
            ) from error

    @contextmanager
    def _asked(
        self,
        method: str,
        url: str,
        body: Mapping[str, object] | None,
        answer_s: float,
        connection: Connection | None = None,
    ) -> Iterator[httpx.Response]:
        client = self._client if connection is None else self._streams
        timeout = httpx.Timeout(answer_s, connect=self.limits.connect_s)
        try:
            request = client.build_request(method, url, json=body, timeout=timeout)
            if connection is not None:
                request.extensions["trace"] = connection.trace
            response = client.send(request, stream=True)
            try:
                self._check(response)
                yield response
            finally:
                response.close()
        except httpx.InvalidURL as error:
            raise ServerError(f"{self.name} names no address: {error}") from error
        except httpx.TimeoutException as error:
            said = f"it took longer than {self._limit_of(error, answer_s):g} s"
            raise ServerUnreachableError(self._unreachable(said)) from error
        except httpx.TransportError as error:
            raise self._transport_error(error) from error

    def _limit_of(self, error: httpx.TimeoutException, answer_s: float) -> float:
        is_connecting = isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout)
        return self.limits.connect_s if is_connecting else answer_s

    def _transport_error(self, error: httpx.TransportError) -> ServerError:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLError):
                return ServerError(self._untrusted(cause))
            cause = cause.__cause__ or cause.__context__
        return ServerUnreachableError(self._unreachable(self.harmless(str(error)) or "no reason"))

    def _untrusted(self, error: ssl.SSLError) -> str:
        if not isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"{self.name} does not speak TLS as this system does ({error.reason or error}): "
                "write http:// where it has none, or start it with a certificate"
            )
        known = {
            X509_EXPIRED: "renew its certificate",
            X509_OTHER_NAME: "use the name that its certificate is for",
            X509_OTHER_ADDRESS: "use the name or address that its certificate is for",
        }
        todo = known.get(
            error.verify_code,
            "add its certificate to the system's, or name the file in SSL_CERT_FILE",
        )
        return f"{self.name} cannot be trusted ({error.verify_message}): {todo}"

    def _unreachable(self, said: str) -> str:
        return f"{self.name} does not answer or broke off ({said}): see that it runs"

    def _check(self, response: httpx.Response) -> None:
        """Refuse what leads elsewhere, and what is packed: its size would not be bounded."""
        if response.status_code in REDIRECTS:
            location = urljoin(str(response.url), response.headers.get("location", ""))
            same = origin_of(location) == origin_of(self.url)
            if not same or response.request.method != "GET":
                raise ServerError(
                    f"{self.name} sends on to {urlsplit(location).netloc or 'nowhere'}: kvchat "
                    "follows to no other host and gives it no key; name that address if you "
                    "trust it"
                )
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise ServerError(f"{self.name} packs what it was asked to send as it is")

    def _body(self, response: httpx.Response) -> bytes:
        """What an answer holds, if it is one."""
        is_good = response.is_success
        limit = MAX_BODY if is_good else MAX_ERROR
        ends_at = time.monotonic() + self.limits.answer_s
        data = bytearray()
        for chunk in response.iter_raw():
            data += chunk
            if len(data) > limit or time.monotonic() > ends_at:
                if not is_good:
                    break
                raise ServerError(
                    f"{self.name} sent {len(data):,} bytes where {limit:,} are the most, or took "
                    f"longer than {self.limits.answer_s:g} s"
                )
        if not is_good:
            self._refuse(response.status_code, bytes(data[:limit]))
        return bytes(data)

    def _refuse(self, status: int, data: bytes) -> None:
        """Raise what an answer that is none means."""
        said = self.harmless(_words(data))
        whole = data.decode("utf-8", "replace").lower()
        match status:
            case 400 | 413 if any(word in whole for word in CONTEXT_WORDS):
                raise ContextFullError(f"{self.name}: {said}")
            case 401 | 403:
                todo = "it is refused" if self.has_key else "it wants one"
                raise ServerError(
                    f"{self.name} asks for a key, and {todo} ({status}): put the right one into "
                    f"{KEY_VARIABLE}, or into the keyring"
                )
            case 404:
                raise MissingError(f"{self.name} has not what it was asked for (404): {said}")
            case 429 | 502 | 503 | 504:
                raise ServerBusyError(f"{self.name} cannot answer now ({status}): {said}")
            case _:
                raise ServerError(f"{self.name} refuses ({status}): {said}")

    def _object(self, data: bytes, path: str) -> Mapping[str, object]:
        try:
            found = parse_json(data)
        except ValueError as error:
            raise ServerError(
                f"{self.name} sent at {path} what is no JSON ({error}): this is no language "
                "model's server, or it is broken"
            ) from error
        if not isinstance(found, dict):
            raise ServerError(f"{self.name} sent at {path} JSON that is no object")
        return found

    def told(self, error: object) -> str:
        """A server's own word of an error, as a message repeats it."""
        return self.harmless(_said_in(error) or "no reason")

    def harmless(self, text: str) -> str:
        """A server's words as a message repeats them: short, on one line, without the key."""
        if self._key is not None:
            text = text.replace(self._key, "[key]")
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return text if len(text) <= MOST_TOLD else f"{text[:MOST_TOLD]}..."


class MissingError(ServerError):
    """The server has not what was asked for."""


def _words(data: bytes) -> str:
    """What a refusal says, out of JSON where it is some."""
    try:
        found = parse_json(data)
    except ValueError:
        return data.decode("utf-8", "replace").strip() or "no reason"
    return _said_in(found) or data.decode("utf-8", "replace")


def _said_in(found: object) -> str:
    """The sentence of an error as OpenAI's, Ollama's and FastAPI's servers write it."""
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            return _said_in(found[name])
    return found if isinstance(found, str) else ""


def parts_as_they_come(
    stream: Iterator[bytes], rest: Callable[[float], None] = time.sleep
) -> Iterator[bytes]:
    """The parts of a stream: those that are there at once, then a rest in which more may come.

    Args:
        stream: What a server sends, in as many parts as it wrote.
        rest: Takes the seconds for which nothing is read.
    """
    while True:
        asked_at = time.monotonic()
        part = next(stream, None)
        if part is None:
            return
        had_to_wait = time.monotonic() - asked_at > WAITED_S
        yield part
        if had_to_wait:
            rest(READ_EVERY_S)


def lines(chunks: Iterable[bytes], *, limit: int) -> Iterator[bytes]:
    """The lines of a stream as they become whole, without their ends; the last may have none.

    Args:
        chunks: The stream.
        limit: Most bytes of a line.

    Raises:
        TooLongError: a line is longer.
    """
    held = bytearray()
    for chunk in chunks:
        held += chunk
        *whole, rest = held.split(b"\n")
        if any(len(line) > limit for line in whole) or len(rest) > limit:
            raise TooLongError(f"more than {limit:,} bytes")
        for line in whole:
            yield bytes(line.removesuffix(b"\r"))
        held = rest
    if held:
        yield bytes(held.removesuffix(b"\r"))


def events(read: Iterable[bytes], *, limit: int = 1 << 22) -> Iterator[bytes]:
    """The data of each event (WHATWG HTML §9.2.6); empty for a comment, which keeps a stream open.

    An event that the end of the stream cuts off is none.

    Args:
        read: The lines of the stream.
        limit: Most bytes of an event.

    Raises:
        TooLongError: an event is longer.
    """
    data: list[bytes] = []
    n_bytes = 0
    for line in read:
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
            n_bytes += len(data[-1]) + len(b"\n")  # empty lines count too
            if n_bytes > limit:
                raise TooLongError(f"more than {limit:,} bytes")
        elif not line:
            if data:
                yield b"\n".join(data)
            data.clear()
            n_bytes = 0
        else:
            yield b""
