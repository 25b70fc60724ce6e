"""Requests to one server: bounded, timed, never sent on to another host, with the key kept back."""

import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from engine.backends.server.event_stream import (
    TooLongError,
    events,
    lines,
    parts_as_they_come,
)
from engine.backends.server.patience import Connection, Patience, Report
from engine.backends.server.served_reply import ServedReply
from engine.errors import ContextFullError, EngineError, ServerError
from engine.parsing import parse_json
from engine.requests import Cancellation
from engine.servers import KEY_VARIABLE, LOOPBACK, key_of, origin_of, shown_origin

MAX_BODY = 1 << 23
"""Most bytes of an answer that is no stream."""
MAX_ERROR = 1 << 16
MAX_EVENT = 1 << 22
"""Most bytes of one event of a stream: a server repeats a prompt of 100,000 tokens in less."""
MOST_IDLE = 1 << 14
"""Most events in a row without anything new: empty ones come as fast as the network is."""
MOST_TOLD = 300
"""Characters of a server's own words that a message repeats."""
MASK = "[key]"
SECRET = 8
"""Characters from which on a key is taken for a secret wherever it stands; those of servers that
want none are words such as `none` and `ollama`."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})
CONTEXT_WORDS = (
    "exceed_context_size",
    "context_length_exceeded",
    "maximum context length",
    "the model's context length",
)
"""How servers say that a prompt is too long: llama-server 0c1e570, OpenAI, vLLM 0.32, SGLang 0.5.
"""


class ServerUnreachableError(ServerError):
    """It does not answer, or ended the connection: it may answer when it is asked again."""


class ServerSilentError(ServerError):
    """It made no progress for too long: asking again would take as long."""


class ServerBusyError(ServerUnreachableError):
    """It is loading its model, or has too much to do, and says so."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """How long a server may take, in seconds."""

    connect_s: float = 5.0
    answer_s: float = 20.0
    """For what needs no computing."""
    first_s: float = 600.0
    """Without progress before the first text: a long prompt on a slow machine. Comments, by which
    a server keeps the connection open, make it the limit of a running reply too."""
    silence_s: float = 120.0
    """Without new text in a reply that runs."""
    loading_s: float = 300.0
    """How long a server may load its model."""
    pauses_s: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    """Waits before a request is sent once more; none is, once a token came."""


class Http:
    """One server. Several threads may ask at once."""

    def __init__(
        self,
        url: str,
        limits: TimeLimits,
        report_wait: Callable[[str], None] | None = None,
        *,
        is_trusted: bool = False,
    ) -> None:
        """Without a connection yet.

        Args:
            url: Its address.
            limits: How long it may take.
            is_trusted: As `Configuration.is_server_trusted`.
            report_wait: Called, from any thread, with what takes long; empty where it goes on.

        Raises:
            ServerError: its key cannot be sent.
        """
        self.url = url
        self.name = shown_origin(url)
        """As messages call it."""
        self.limits = limits
        self.report_wait = report_wait or (lambda _: None)
        self._key = key_of(url, is_trusted=is_trusted)
        headers = {"accept-encoding": "identity", "user-agent": "kvchat"}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        # The certificates that the system trusts, not those of a package.
        verify = ssl.create_default_context() if url.startswith("https:") else False
        # Each request has a connection of its own, which is cut where it is stopped or is late.
        self._client = httpx.Client(
            headers=headers,
            verify=verify,
            limits=httpx.Limits(max_keepalive_connections=0),
            # Before a server of this machine there is no proxy.
            trust_env=origin_of(url)[1] not in LOOPBACK,
        )

    @property
    def has_key(self) -> bool:
        """Whether it is asked with a key."""
        return self._key is not None

    def close(self) -> None:
        """End every connection."""
        self._client.close()

    def get(self, path: str) -> bytes:
        """What lies at a path.

        Raises:
            ServerError: it cannot be had.
        """
        with self._asked("GET", self.url + path, None, self.limits.answer_s) as (response, _):
            return self._body(response)

    def get_json(self, path: str) -> Mapping[str, object]:
        """The JSON object at a path.

        Raises:
            ServerError: it cannot be had, or is none.
        """
        return self._masked(self._object(self.get(path), path))

    def post_json(self, path: str, body: Mapping[str, object]) -> Mapping[str, object]:
        """The JSON object that a question is answered with.

        Args:
            path: What is asked.
            body: The question.

        Raises:
            ServerError: there is no such answer.
            ContextFullError: the prompt is longer than the context.
        """
        with self._asked("POST", self.url + path, body, self.limits.answer_s) as (response, _):
            return self._object(self._body(response), path)

    def stream(
        self,
        path: str,
        body: Mapping[str, object],
        cancellation: Cancellation,
        reply: ServedReply,
    ) -> Iterator[Mapping[str, object]]:
        """The server-sent events (WHATWG HTML §9.2) of a reply, until it or `cancellation` ends.

        Cancelling cuts the connection, by which servers know that nobody waits any more.

        Args:
            path: What is asked.
            body: The request.
            cancellation: Ends it from any thread.
            reply: What is made of the events; says whether they brought anything.

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
            with self._asked("POST", self.url + path, body, first_s, connection) as asked:
                response, patience = asked
                if response.status_code != httpx.codes.OK:
                    self._body(response)
                    raise ServerError(f"{self.name} answers {response.status_code} without a reply")
                yield from self._objects(response, path, patience, reply)
        finally:
            cancellation.detach()

    def _objects(
        self,
        response: httpx.Response,
        path: str,
        patience: Patience,
        reply: ServedReply,
    ) -> Iterator[Mapping[str, object]]:
        read = lines(parts_as_they_come(response.iter_raw()), limit=MAX_EVENT)
        known, n_idle = 0, 0
        try:
            for data in events(read):
                if data == b"[DONE]":
                    return
                if not data:
                    patience.limit_s = self.limits.first_s
                    continue
                yield self._object(data, path)
                n_idle += 1
                if reply.n_progress > known:
                    known, n_idle = reply.n_progress, 0
                    limits = self.limits
                    patience.note_progress(limits.silence_s if reply.n_text else limits.first_s)
                elif n_idle > MOST_IDLE:
                    raise ServerError(f"{self.name} sent {n_idle:,} events without new text")
        except TooLongError as error:
            raise ServerError(
                f"{self.name} sent {error} in one event of {path}, too many for a reply: "
                "this is not a language model server, or it is broken"
            ) from error

    @contextmanager
    def _asked(
        self,
        method: str,
        url: str,
        body: Mapping[str, object] | None,
        limit_s: float,
        connection: Connection | None = None,
    ) -> Iterator[tuple[httpx.Response, Patience]]:
        connection = connection or Connection()
        timeout = httpx.Timeout(limit_s, connect=self.limits.connect_s)
        report = self._reporting(urlsplit(url).path)
        with Patience(connection, limit_s, report) as patience:
            try:
                if self._client.is_closed:
                    raise ServerError(
                        f"{self.name}: the request was cancelled because the chat was closed"
                    )
                request = self._client.build_request(method, url, json=body, timeout=timeout)
                request.extensions["trace"] = connection.trace
                response = self._client.send(request, stream=True)
                try:
                    self._check(response)
                    yield response, patience
                finally:
                    response.close()
                if patience.is_over:  # what has no length ends where it is cut
                    raise self._silent(patience.limit_s)
            except EngineError as error:
                if patience.is_over:
                    raise self._silent(patience.limit_s) from error
                raise
            except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # a host's name
                if patience.is_over:
                    raise self._silent(patience.limit_s) from error
                raise self._as_server_error(error, limit_s) from error

    def _reporting(self, path: str) -> Report:
        def report(silent_s: float, limit_s: float) -> None:
            text = f"{self.name} has sent nothing of {path} for {silent_s:.0f} s"
            self.report_wait(f"{text} (gives up after {limit_s:g} s)" if silent_s else "")

        return report

    def _silent(self, limit_s: float) -> ServerSilentError:
        return ServerSilentError(
            f"{self.name} sent nothing for {round(limit_s, 1):g} s: check the server"
        )

    def _as_server_error(
        self, error: httpx.HTTPError | httpx.InvalidURL | UnicodeError, limit_s: float
    ) -> ServerError:
        match error:
            case httpx.ConnectTimeout() | httpx.PoolTimeout():
                said = f"it took longer than {self.limits.connect_s:g} s"
                return ServerUnreachableError(self._unreachable(said))
            case httpx.TimeoutException():
                return self._silent(limit_s)
            case httpx.TransportError():
                return self._transport_error(error)
            case _:
                return ServerError(
                    f"{self.name} is not a known address: {self.harmless(str(error))}"
                )

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
        return (
            f"{self.name} cannot be trusted ({error.verify_message}): use the host name of its "
            f"certificate, renew the certificate, add it to the system's certificates, or name "
            "its file in SSL_CERT_FILE"
        )

    def _unreachable(self, reason: str) -> str:
        reason = re.sub(r"^\[Errno -?\d+\] ", "", reason)
        return (
            f"{self.name} cannot be reached or closed the connection ({reason}): check that it runs"
        )

    def _check(self, response: httpx.Response) -> None:
        """Refuse what leads elsewhere, and what is packed: its size would not be bounded."""
        if response.status_code in REDIRECTS:
            where = self.harmless(response.headers.get("location", "")) or "nowhere"
            raise ServerError(
                f"{self.name} redirects to {where}: kvchat sends no key to another host; "
                "use that address if you trust it"
            )
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise ServerError(f"{self.name} compresses its answer although kvchat asked it not to")

    def _body(self, response: httpx.Response) -> bytes:
        """What an answer holds, if it is one."""
        is_good = response.is_success
        limit = MAX_BODY if is_good else MAX_ERROR
        data = bytearray()
        for chunk in response.iter_raw():
            data += chunk
            if len(data) > limit:
                if not is_good:
                    break
                raise ServerError(f"{self.name} sent more than {limit:,} bytes, the limit")
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
                todo = "the key that was sent is refused" if self.has_key else "none was sent"
                raise ServerError(
                    f"{self.name} asks for a key, and {todo} ({status}): set {KEY_VARIABLE} "
                    f"and name the server with --server or in a preset, or store the key in the "
                    "keyring"
                )
            case 404:
                raise MissingError(f"{self.name} answers 404 (not found): {said}")
            case 429 | 502 | 503 | 504:
                raise ServerBusyError(f"{self.name} cannot answer now ({status}): {said}")
            case _:
                raise ServerError(f"{self.name} refuses ({status}): {said}")

    def _object(self, data: bytes, path: str) -> Mapping[str, object]:
        try:
            found = parse_json(data)
        except ValueError as error:
            raise ServerError(
                f"{self.name} returned invalid JSON for {path} ({error}): it is not a language "
                "model server, or it is broken"
            ) from error
        if not isinstance(found, dict):
            raise ServerError(f"{self.name} returned JSON for {path} that is not an object")
        return found

    def _masked(self, found: Mapping[str, object]) -> Mapping[str, object]:
        """What a server says of itself, without the key; a short one is a word like others."""
        if self._key is None or len(self._key) < SECRET:
            return found
        masked = _replaced(found, self._key)
        assert isinstance(masked, dict), "it was one"
        return masked

    def told(self, error: object) -> str:
        """A server's own word of an error, as a message repeats it."""
        return self.harmless(_said_in(error) or "no reason")

    def harmless(self, text: str) -> str:
        """A server's words as a message repeats them: short, on one line, without the key."""
        if self._key is not None:
            text = text.replace(self._key, MASK)
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return text if len(text) <= MOST_TOLD else f"{text[:MOST_TOLD]}..."


def _replaced(value: object, key: str) -> object:
    match value:
        case str():
            return value.replace(key, MASK)
        case list():
            return [_replaced(each, key) for each in value]
        case dict():
            return {_replaced(k, key): _replaced(each, key) for k, each in value.items()}
        case _:
            return value


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
