"""A server that answers what another one answered, as `tests/recordings` have it."""

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

RECORDINGS = Path(__file__).parents[1] / "recordings"


@dataclass
class Replay:
    """Where it is, whose replies it has, and what it was asked."""

    program: str
    version: str
    url: str = ""
    asked: list[tuple[str, dict[str, object]]] = field(default_factory=list)


@contextmanager
def replaying(name: str) -> Iterator[Replay]:
    """Serve a recording: answers to the same question in their order, the last one ever after."""
    recording = json.loads((RECORDINGS / f"{name}.json").read_text("utf-8"))
    answers: defaultdict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for each in recording["exchanges"]:
        answers[each["method"], each["path"]].append(each)
    replay = Replay(recording["program"], recording["version"])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self._answer("GET", {})

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", 0))
            self._answer("POST", json.loads(self.rfile.read(length)))

        def _answer(self, method: str, body: dict[str, object]) -> None:
            replay.asked.append((self.path, body))
            known = answers[method, self.path]
            recorded = known[0] if known else {"status": "404", "type": "text/plain", "body": ""}
            if len(known) > 1:
                known.pop(0)
            data = str(recorded["body"]).encode()
            self.send_response(int(recorded["status"]))
            self.send_header("Content-Type", str(recorded["type"]))
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    replay.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield replay
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()
