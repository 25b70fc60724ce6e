"""A web server on this machine that gives files in pieces, and misbehaves on request."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Asked:
    """One request as the server saw it."""

    path: str
    headers: dict[str, str]

    @property
    def token(self) -> str | None:
        return self.headers.get("authorization")

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


@dataclass
class Server:
    """Files by path, and what the server does otherwise."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Status and `X-Error-Code` by path."""
    etag: str | None = '"one"'
    etags: list[str] = field(default_factory=list)
    """What the next answers have instead of `etag`, each once."""
    size: int | None = None
    """Size that is claimed for every file; None is the real one."""
    knows_ranges: bool = True
    cut_at: int | None = None
    """Bytes of a body before the connection ends."""
    delay_s: float = 0.0
    secret: str | None = None
    """Token without which nothing is given."""
    content_range: str | None = None
    asked: list[Asked] = field(default_factory=list)


@contextmanager
def running(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a server on a free port of this machine; gives its address."""
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    httpd.daemon_threads = True
    httpd.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that leave are reported
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


@contextmanager
def serving() -> Iterator[Server]:
    """Run a server of files; its address is `server.url`."""
    server = Server("")
    with running(type("Handler", (_Handler,), {"server_state": server})) as server.url:
        yield server


class _Handler(BaseHTTPRequestHandler):
    server_state: Server

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        state = self.server_state
        path = self.path.partition("?")[0]
        headers = {name.lower(): value for name, value in self.headers.items()}
        state.asked.append(Asked(self.path, headers))
        time.sleep(state.delay_s)
        if state.etags:
            state.etag = state.etags.pop(0)
        if path in state.redirects:
            return self._end(302, Location=state.redirects[path])
        if path in state.refusals:
            status, code = state.refusals[path]
            return self._end(status, **({"X-Error-Code": code} if code else {}))
        if state.secret and headers.get("authorization") != f"Bearer {state.secret}":
            return self._end(401)
        if path not in state.files:
            return self._end(404)
        if state.etag and headers.get("if-none-match") == state.etag:
            return self._end(304)
        return self._give(state.files[path], headers.get("range"))

    def _give(self, data: bytes, wanted: str | None) -> None:
        state = self.server_state
        total = state.size or len(data)
        match = re.match(r"bytes=(\d+)-(\d+)$", wanted or "")
        if match is None or not state.knows_ranges:
            self._start(200, total)
            self.wfile.write(data if state.knows_ranges else data[:1000])
            return
        start, stop = int(match[1]), min(int(match[2]) + 1, total)
        body = data[start:stop] + bytes(max(0, stop - max(start, len(data))))
        self._start(206, len(body), f"bytes {start}-{stop - 1}/{total}")
        self.wfile.write(body[: state.cut_at])

    def _start(self, status: int, length: int, content_range: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        if content_range:
            declared = self.server_state.content_range
            self.send_header("Content-Range", content_range if declared is None else declared)
        if self.server_state.etag:
            self.send_header("ETag", self.server_state.etag)
        self.end_headers()

    def _end(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def dripping(start: bytes = b"") -> Iterator[str]:
    """The address of a server that answers one byte after the other, after a start."""
    left = threading.Event()

    def drip() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(start)
            while not left.wait(0.02):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        left.set()
        thread.join()


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """The address of a server that answers every request with the same bytes."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815  a name of the library

    with running(Handler) as url:
        yield url
