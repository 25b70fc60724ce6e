"""A server of a language model on this machine that misbehaves as a test wants."""

import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

import pytest

Misdeed = Literal[
    "none", "cut", "broken json", "ten megabytes", "endless line", "endless text", "silence",
    "comments", "elsewhere", "gone model", "busy once", "reset once", "no json", "packed",
    "gives up", "echoes key", "slow", "too long", "busy", "no address", "names key",
    "1xx", "header drip", "body drip", "unfinished line", "empty objects", "empty texts",
    "usage beside choices", "slow counters", "no tokenizer", "no reason",
]  # fmt: skip
DRIPS: Mapping[str, tuple[bytes, bytes]] = {
    "1xx": (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "header drip": (b"HTTP/1.1 200 OK\r\nx: ", b"a"),
    "body drip": (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
    "unfinished line": (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
    "empty objects": (b"HTTP/1.1 200 OK\r\n\r\n", b"data: {}\n\n"),
    "empty texts": (
        b"HTTP/1.1 200 OK\r\n\r\n", b'data: {"choices":[{"delta":{"content":""}}]}\n\n',
    ),
}  # fmt: skip
"""What is sent first, and then again and again: no time is without a byte, and nothing comes."""
Kind = Literal["llama-server", "vLLM", "SGLang", "Ollama", "OpenAI"]
WORDS = ("The", " cat", " sat", " on", " the", " mat", ".")
FINE = ("none", "usage beside choices", "slow counters", "no tokenizer", "no reason")
"""Misdeeds that leave replies whole."""
CHUNK = b"x" * (1 << 16)
PROGRESS = {"total": 9, "cache": 4, "processed": 6, "time_ms": 1}
"""The first event of a llama-server's reply."""


@dataclass
class LanguageServer:
    """What it is, what it does otherwise, and what it was asked."""

    url: str = ""
    kind: Kind = "OpenAI"
    misdeed: Misdeed = "none"
    model: str = "tiny"
    key: str | None = None
    elsewhere: str = ""
    """Where it sends on to."""
    asked: list[tuple[str, dict[str, str], dict[str, object]]] = field(default_factory=list)
    """Path, headers and body of each request."""
    n_cut: int = 0
    """Connections that the client ended before the reply was whole."""
    is_at_work: bool = False
    """A llama-server's report of its slot."""
    drafts: bool = True
    sees_images: bool = False
    metrics: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    """Further headers of the answer of `/v1/models`."""
    numbers: dict[str, object] = field(default_factory=dict)
    """Counts and times that take the place of the right ones, wherever they are sent."""
    is_released: threading.Event = field(default_factory=threading.Event)
    """Lets what hangs end, so that a test leaves nothing running."""


def own_certificate(folder: Path, name: str = "IP:127.0.0.1") -> Path:
    """A certificate for a name that nobody signed, with its key; `cert.pem` beside it has none.

    Without openssl the test is skipped.
    """
    pem, signed = folder / "server.pem", folder / "cert.pem"
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    subprocess.run(
        ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=test", "-addext", f"subjectAltName={name}", "-keyout", str(pem), "-out",
         str(signed)),
        check=True, capture_output=True,
    )  # fmt: skip
    pem.write_text(pem.read_text() + signed.read_text())
    return pem


@contextmanager
def serving(
    kind: Kind = "OpenAI", certificate: Path | None = None, port: int = 0
) -> Iterator[LanguageServer]:
    """Run one; its address is `url`."""
    server = LanguageServer(kind=kind)
    handler = type("Handler", (_Handler,), {"server_state": server})
    httpd = ThreadingHTTPServer(("127.0.0.1", port), handler)
    httpd.daemon_threads = True
    httpd.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients may leave
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
        scheme = "https"
    server.url = f"{scheme}://127.0.0.1:{httpd.server_address[1]}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.is_released.set()
        httpd.shutdown()
        thread.join()
        httpd.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_state: LanguageServer
    """Number of the user whose chat it is."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._asked({})
        if not self._is_let_in():
            return
        state = self.server_state
        owners = {"llama-server": "llamacpp", "vLLM": "vllm", "SGLang": "sglang"}
        entry: dict[str, object] = {
            "id": state.model,
            "owned_by": owners.get(state.kind, "somebody"),
        }
        if state.kind in ("vLLM", "SGLang"):
            entry["max_model_len"] = 512
        if state.kind == "llama-server":
            entry["meta"] = {"n_vocab": 100, "n_ctx_train": 2048}
        if state.sees_images:
            entry["architecture"] = {"input_modalities": ["text", "image"]}
        props = {
            "default_generation_settings": {"n_ctx": 1024},
            "total_slots": 2,
            "build_info": state.key if state.misdeed == "names key" else "b1-test",
            "chat_template": "x",
            "model_ftype": "Q4_1",
            "endpoint_slots": True,
            "endpoint_metrics": bool(state.metrics),
            "modalities": {"vision": state.sees_images},
            "media_marker": "<here>",
        }
        own: Mapping[Kind, Mapping[str, object]] = {
            "llama-server": {
                "/props": props,
                "/health": {"status": "ok"},
                "/slots": [
                    {"id": 0, "speculative": state.drafts, "is_processing": state.is_at_work}
                ],
            },
            "Ollama": {"/api/version": {"version": "0.12.0"}},
            "vLLM": {"/version": {"version": "0.32.0"}},
            "SGLang": {"/server_info": {"version": "0.5.23"}},
            "OpenAI": {},
        }
        if self._misbehaves_at_once():
            return
        if self.path == "/v1/models":
            self._answer(
                json.dumps({"object": "list", "data": [entry]}).encode(), 200, state.headers
            )
        elif self.path in own[state.kind]:
            self._answer(json.dumps(own[state.kind][self.path]).encode())
        elif self.path == "/metrics" and state.misdeed == "slow counters":
            state.is_released.wait(30)
        elif self.path == "/metrics" and state.metrics:
            self._answer(state.metrics.encode())
        else:
            self._answer(b'{"error": {"message": "not here"}}', 404)

    def _misbehaves_at_once(self) -> bool:
        """Whether what is asked is answered otherwise than by what it is."""
        match self.server_state.misdeed:
            case misdeed if misdeed in DRIPS:
                self._drip(misdeed)
            case "busy":
                self._answer(b'{"error": {"message": "Loading model"}}', 503)
            case "no address":
                self._answer(b"", 302, {"Location": self.server_state.elsewhere})
            case "no json":
                self._answer(b"<html>It works!</html>")
            case "packed":
                self._answer(b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
            case _:
                return False
        return True

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        body = json.loads(self.rfile.read(length) or b"{}")
        self._asked(body)
        if not self._is_let_in():
            return
        if self.path == "/apply-template":
            value = "".join(f"<{each['role']}>{each['content']}" for each in body["messages"])
            self._answer(json.dumps({"prompt": f"{value}<assistant>"}).encode())
        elif self.path == "/detokenize":
            self._answer(json.dumps({"content": "".join(map(_word, body["tokens"]))}).encode())
        elif self.path == "/tokenize" and self.server_state.misdeed == "no tokenizer":
            self._answer(b'{"error": {"message": "Loading model"}}', 503)
        elif self.path == "/tokenize":
            self._answer(json.dumps({"tokens": [*map(ord, body["content"])]}).encode())
        else:
            self._reply(body)

    def _asked(self, body: dict[str, object]) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server_state.asked.append((self.path, headers, body))

    def _is_let_in(self) -> bool:
        state = self.server_state
        if state.is_released.is_set():  # it is gone: a client with an open connection has to notice
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return False
        if state.misdeed == "elsewhere" and state.elsewhere:
            self._answer(b"", 307, {"Location": f"{state.elsewhere}{self.path}"})
            return False
        sent = self.headers.get("authorization")
        if state.misdeed == "echoes key":
            value = json.dumps({"error": {"message": f"the key {sent} is wrong"}})
            self._answer(value.encode(), 400)
            return False
        if state.key is not None and sent != f"Bearer {state.key}":
            self._answer(b'{"error": {"message": "Invalid API Key"}}', 401)
            return False
        return True

    def _answer(self, data: bytes, status: int = 200, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    # --- replies ---

    def _reply(self, body: Mapping[str, object]) -> None:
        state, misdeed = self.server_state, self.server_state.misdeed
        if misdeed in DRIPS:
            self._drip(misdeed)
        elif misdeed == "no address":
            self._answer(b"", 307, {"Location": self.server_state.elsewhere})
        elif misdeed == "gone model":
            self._answer(b'{"error": {"message": "model tiny not found"}}', 404)
        elif misdeed == "too long":
            value = {"message": "the request exceeds the available context size", "type":
                    "exceed_context_size_error"}  # fmt: skip
            self._answer(json.dumps({"error": value}).encode(), 400)
        elif misdeed == "busy once":
            state.misdeed = "none"
            self._answer(b'{"error": {"message": "Loading model"}}', 503)
        elif misdeed == "reset once":
            state.misdeed = "none"
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif misdeed == "slow":
            state.is_released.wait(30)
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        else:
            self._stream(misdeed)

    def _drip(self, misdeed: str) -> None:
        first, again = DRIPS[misdeed]
        self.close_connection = True
        with suppress(OSError):
            self._write(first)
            self._write_on(lambda: self._write(again), 0.01)

    def _stream(self, misdeed: Misdeed) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self._words(misdeed)
        except OSError:
            self.server_state.n_cut += 1

    def _words(self, misdeed: Misdeed) -> None:
        if self.server_state.kind == "llama-server":
            self._event({"content": "no", "prompt_progress": PROGRESS})
        for number, word in enumerate(WORDS):
            self._event(self._chunk(word, number))
            if number == 2 and misdeed not in FINE:
                self._misbehave(misdeed)
                return
        for last in self._ends() if misdeed != "no reason" else ():
            self._event(last)
        if self.server_state.kind not in ("llama-server", "Ollama"):
            self._write(b"data: [DONE]\n\n")

    def _misbehave(self, misdeed: Misdeed) -> None:
        if misdeed == "broken json":
            self._write(b'data: {"choices": [\n\n')
        match misdeed:
            case "ten megabytes":
                self._event({"choices": [{"delta": {"content": "y" * 10_000_000}}]})
            case "endless line":
                self._write(b"data: ")
                self._write_on(lambda: self._write(CHUNK))
            case "endless text":
                self._write_on(lambda: self._event(self._chunk("z" * 500_000, 3)))
            case "silence":
                self.server_state.is_released.wait(30)
            case "comments":
                self._write_on(lambda: self._write(b": still here\n\n"), 0.02)
            case "gives up":
                self._event({"error": {"message": "out of memory"}})
            case _:
                return

    def _write_on(self, write: Callable[[], None], pause_s: float = 0.0) -> None:
        while not self.server_state.is_released.wait(pause_s):
            write()

    def _chunk(self, word: str, number: int) -> dict[str, object]:
        match self.server_state.kind:
            case "llama-server":
                return {
                    "content": word,
                    "tokens": [number],
                    "tokens_predicted": number + 1,
                    "timings": _timings(number + 1),
                }
            case "vLLM":
                usage = {"prompt_tokens": 9, "completion_tokens": number + 1}
                return {"choices": [{"delta": {"content": word}}], "usage": usage}
            case _:
                return {"choices": [{"delta": {"content": word}}]}

    def _ends(self) -> list[dict[str, object]]:
        n = len(WORDS)
        match self.server_state.kind:
            case "llama-server":
                return [{"stop_type": "word", "truncated": False, "timings": _timings(n)}]
            case _:
                usage = {"prompt_tokens": 9, "completion_tokens": n,
                         "prompt_tokens_details": {"cached_tokens": 4}}  # fmt: skip
                last: dict[str, object] = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
                if self.server_state.misdeed == "usage beside choices":
                    return [{**last, "usage": usage}]
                return [last, {"choices": [], "usage": usage}]

    def _event(self, value: Mapping[str, object]) -> None:
        data = json.dumps(_with(value, self.server_state.numbers)).encode()
        self._write(b"data: " + data + b"\n\n")

    def _write(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()


def _with(value: object, numbers: Mapping[str, object]) -> object:
    """What is value, with other numbers."""
    match value:
        case dict():
            return {name: numbers.get(name, _with(each, numbers)) for name, each in value.items()}
        case list():
            return [_with(each, numbers) for each in value]
        case _:
            return value


def _word(token: int) -> str:
    return WORDS[token] if 0 <= token < len(WORDS) else ""


def _timings(n_predicted: int) -> dict[str, float]:
    """A draft of three tokens in the second round, of which two are right."""
    has_drafted = n_predicted > 1
    return {
        "cache_n": 4,
        "prompt_n": 5,
        "prompt_ms": 50.0,
        "predicted_n": n_predicted,
        "predicted_ms": 20.0 * n_predicted,
        "predicted_per_second": 50.0,
        **({"draft_n": 3, "draft_n_accepted": 2} if has_drafted else {}),
    }


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_cut(server: LanguageServer, patience_s: float = 20.0) -> None:
    """Come back once a client has ended its connection, and fail if none does."""
    deadline = time.monotonic() + patience_s
    while not server.n_cut:
        assert time.monotonic() < deadline, "the connection stays open"
        with suppress(InterruptedError):
            time.sleep(0.01)
