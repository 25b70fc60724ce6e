"""Requests to one language model server: its key, its refusals, and the progress of a reply."""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from engine.backends.server.served_reply import ServedReply
from engine.errors import ContextFullError, ServerError
from engine.events import FinishReason
from engine.http import Answer, HttpClient, HttpError, SilentError, UnreachableError, one_line
from engine.parsing import parse_json
from engine.requests import Cancellation
from engine.servers import KEY_VARIABLE, key_of, shown_origin

MAX_BODY = 1 << 23
"""Bytes of an answer that is not a stream."""
MAX_EVENT = 1 << 22
"""Bytes of one event: a server repeats a prompt of 100,000 tokens in less."""
MAX_IDLE_EVENTS = 1 << 14
"""Events in a row without new text: empty ones arrive as fast as the network is."""
MASK = "[key]"
MIN_SECRET = 8
"""Characters from which a key is masked in what a server reports: keys of servers that need none
are words such as `none` and `ollama`."""
CONTEXT_WORDS = (
    "exceed_context_size",
    "context_length_exceeded",
    "maximum context length",
    "the model's context length",
)
"""Error texts of llama-server 0c1e570, OpenAI, vLLM 0.32 and SGLang 0.5 for too long prompts."""


class ServerUnreachableError(ServerError):
    """No connection, or one that ended: a second request may succeed."""


class ServerSilentError(ServerError):
    """No progress for too long: a second request would take as long."""


class ServerBusyError(ServerUnreachableError):
    """The server is loading its model or has too many requests."""


class MissingError(ServerError):
    """The server has nothing at this path."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Time limits for the answers of a server, in seconds."""

    connect_s: float = 5.0
    answer_s: float = 20.0
    """Time limit for answers that need no computation."""
    first_s: float = 600.0
    """Time limit without progress before the first text, which a long prompt delays. It also
    applies to a running reply if the server sends comments to keep the connection open."""
    silence_s: float = 120.0
    """Time limit without new text in a running reply."""
    loading_s: float = 300.0
    """Time limit for loading the model."""
    pauses_s: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    """Pauses before a request is repeated; it is not repeated after the first token."""


class Http:
    """One server; thread-safe.

    Args:
        url: Its address.
        limits: How long it may take.
        report_wait: Called from any thread with a text about the wait; empty at its end.
        is_trusted: As `Configuration.is_server_trusted`.

    Raises:
        ServerError: its key cannot be sent.
    """

    def __init__(
        self,
        url: str,
        limits: TimeLimits,
        report_wait: Callable[[str], None] | None = None,
        *,
        is_trusted: bool = False,
    ) -> None:
        self.url, self.limits = url, limits
        self.name = shown_origin(url)
        """Name of the server in messages."""
        self.report_wait = report_wait or (lambda _: None)
        key = key_of(url, is_trusted=is_trusted)
        self.has_key = key is not None
        self._secret = key if key is not None and len(key) >= MIN_SECRET else None
        self._client = HttpClient(url, key=key, connect_s=limits.connect_s)

    def get(self, path: str) -> bytes:
        """The body at a path with the key masked; raises `ServerError`."""
        with self._request("GET", path) as answer:
            data = answer.body(MAX_BODY)
        secret = self._secret
        return data if secret is None else data.replace(secret.encode(), MASK.encode())

    def get_json(self, path: str) -> Mapping[str, object]:
        """The JSON object at a path; raises `ServerError`."""
        return self._object(self.get(path), path)

    def post_json(self, path: str, body: Mapping[str, object]) -> Mapping[str, object]:
        """The JSON object that answers `body`.

        Raises:
            ServerError: there is no such answer.
            ContextFullError: the prompt is longer than the context.
        """
        with self._request("POST", path, body) as answer:
            return self._object(answer.body(MAX_BODY), path)

    def stream(
        self,
        path: str,
        body: Mapping[str, object],
        cancellation: Cancellation,
        reply: ServedReply,
    ) -> Generator[Mapping[str, object], None, None]:
        """The server-sent events of a reply, until it or `cancellation` ends.

        Cancelling closes the connection, so that the server stops.

        Args:
            path: Where replies are requested.
            body: The request.
            cancellation: Ends it from any thread.
            reply: Built from the events; reports progress.

        Raises:
            ServerError: the request fails, the stream breaks off, or an event is invalid.
            ContextFullError: the prompt is longer than the context.
        """

        def attach(cut: Callable[[], None]) -> None:
            cancellation.attach(cut)
            if cancellation.is_cancelled:
                cut()

        try:
            with self._request("POST", path, body, self.limits.first_s, attach) as answer:
                yield from self._objects(answer, path, reply)
        finally:
            cancellation.detach()

    def _objects(
        self, answer: Answer, path: str, reply: ServedReply
    ) -> Iterator[Mapping[str, object]]:
        limits, n_progress, n_idle = self.limits, 0, 0
        for data in answer.events(MAX_EVENT):
            if data == b"[DONE]":
                reply.reason = reply.reason or FinishReason.END  # some send no finish_reason
                return
            if not data:
                answer.watch.limit_s = limits.first_s
                continue
            yield self._object(data, path)
            n_idle += 1
            if reply.n_progress > n_progress:
                n_progress, n_idle = reply.n_progress, 0
                answer.watch.note_progress(limits.silence_s if reply.n_text else limits.first_s)
            elif n_idle > MAX_IDLE_EVENTS:
                raise HttpError(f"sent {n_idle:,} events in a row without new text")

    @contextmanager
    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        limit_s: float | None = None,
        attach: Callable[[Callable[[], None]], None] = lambda _: None,
    ) -> Iterator[Answer]:
        """A successful answer; translates HTTP errors to server errors."""
        try:
            with self._client.request(
                method,
                self.url + path,
                limit_s=limit_s or self.limits.answer_s,
                body=body,
                report=self.report_wait,
                attach=attach,
            ) as answer:
                if answer.status != 200:
                    raise self._refusal(answer.status, answer.body(MAX_BODY))
                yield answer
        except UnreachableError as error:
            raise ServerUnreachableError(
                f"{self.name} cannot be reached or closed the connection "
                f"({self.masked(str(error))}): check that the server is running"
            ) from error
        except SilentError as error:
            raise ServerSilentError(f"{self.name} {error}: check the server") from error
        except HttpError as error:
            raise ServerError(f"{self.name} {self.masked(str(error))}") from error

    def _refusal(self, status: int, data: bytes) -> ServerError | ContextFullError:
        text = data.decode("utf-8", "replace")
        try:
            reason = self.error_text(parse_json(data), text)
        except ValueError:
            reason = self.masked(text.strip() or "no reason")
        if status in (400, 413) and any(word in text.lower() for word in CONTEXT_WORDS):
            return ContextFullError(f"{self.name}: {reason}")
        match status:
            case 401 | 403:
                problem = "the server refused the key" if self.has_key else "none was sent"
                return ServerError(
                    f"{self.name} requires an API key, but {problem} ({status}): set "
                    f"{KEY_VARIABLE} and specify the server with --server or in a preset, "
                    "or store the key in the keyring"
                )
            case 404:
                return MissingError(f"{self.name} answers 404 (not found): {reason}")
            case 429 | 502 | 503 | 504:
                return ServerBusyError(f"{self.name} cannot answer now ({status}): {reason}")
            case _:
                return ServerError(f"{self.name} refused the request ({status}): {reason}")

    def _object(self, data: bytes, path: str) -> Mapping[str, object]:
        try:
            found, reason = parse_json(data), "not an object"
        except ValueError as error:
            found, reason = None, str(error)
        if not isinstance(found, dict):
            raise ServerError(
                f"{self.name} returned invalid JSON for {path} ({reason}): check that the "
                "address is that of a language model server"
            )
        return found

    def error_text(self, error: object, default: str = "no reason") -> str:
        """A server's error message as part of our message."""
        return self.masked(_message_in(error) or default)

    def masked(self, text: str) -> str:
        """A server's text on one line, without the key."""
        return one_line(text if self._secret is None else text.replace(self._secret, MASK))


def _message_in(found: object) -> str:
    """The message in an error of OpenAI, Ollama or FastAPI servers."""
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            return _message_in(found[name])
    return found if isinstance(found, str) else ""
