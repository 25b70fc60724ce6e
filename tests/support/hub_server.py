"""A hub of models on this machine that misbehaves as a test wants."""

import hashlib
import json
import re
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from socket import SO_LINGER, SOL_SOCKET
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.gguf_server import running


@dataclass
class Hub:
    """Files by repository and path, and what the hub does otherwise."""

    url: str
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    downloads: dict[str, int] = field(default_factory=dict)
    digests: dict[str, object] = field(default_factory=dict)
    """What is claimed of a file's checksum in the place of the true one, by its path."""
    sizes: dict[str, int] = field(default_factory=dict)
    """What is claimed of a file's size in the place of the true one, by its path."""
    listed_twice: list[str] = field(default_factory=list)
    has_ranges: bool = True
    """Whether files are given from the middle."""
    content_range: str = ""
    """What is claimed of the sent range."""
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Status and `X-Error-Code` by repository."""
    cuts: list[int] = field(default_factory=list)
    """After how many bytes the next answers end, each once."""
    is_reset: bool = False
    """Whether they end by a reset."""
    elsewhere: str = ""
    """Address of another hub, to which requests for files are redirected."""
    page_size: int = 1000
    next_page: str = ""
    """Address of the next page that every listing has; empty is the true one."""
    pause_s: float = 0.0
    """Before a file is sent."""
    tokens: list[str | None] = field(default_factory=list)
    ranges: list[str | None] = field(default_factory=list)
    """What was asked for of files."""


@contextmanager
def serving_hub() -> Iterator[Hub]:
    """Run a hub; its address is `hub.url`."""
    hub = Hub("")
    with running(type("Handler", (_Handler,), {"hub": hub})) as hub.url:
        yield hub


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.hub.tokens.append(self.headers.get("Authorization"))
        url = urlsplit(self.path)
        path = unquote(url.path).strip("/")
        if path == "api/models":
            return self._json(self._found(parse_qs(url.query).get("search", [""])[0]))
        tree = re.match(r"api/models/(?P<repo>[^/]+/[^/]+)/tree/[^/]+$", path)
        file = re.match(r"(?P<repo>[^/]+/[^/]+)/resolve/[^/]+/(?P<file>.+)$", path)
        match = tree or file
        repo = match["repo"] if match else ""
        if repo in self.hub.refusals:
            status, code = self.hub.refusals[repo]
            return self._answer(status, b"", {"X-Error-Code": code})
        if repo not in self.hub.files:
            return self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        if tree:
            names = (*self.hub.files[repo], *self.hub.listed_twice)
            page, size = int(parse_qs(url.query).get("page", ["0"])[0]), self.hub.page_size
            following = self.hub.next_page or f"{self.hub.url}{url.path}?page={page + 1}"
            more = f'<{following}>; rel="next"'
            has_more = bool(self.hub.next_page) or (page + 1) * size < len(names)
            items = [self._item(repo, name) for name in names[page * size :][:size]]
            return self._json(items, {"Link": more} if has_more else {})
        assert file is not None
        if file["file"] not in self.hub.files[repo]:
            return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        if self.hub.elsewhere:
            return self._answer(302, b"", {"Location": f"{self.hub.elsewhere}{self.path}"})
        return self._give(self.hub.files[repo][file["file"]])

    def _found(self, search: str) -> list[dict[str, object]]:
        return [
            {"id": repo, "modelId": repo, "downloads": self.hub.downloads.get(repo, 0)}
            for repo in self.hub.files
            if search.lower() in repo.lower()
        ]

    def _item(self, repo: str, name: str) -> dict[str, object]:
        data = self.hub.files[repo][name]
        digest = self.hub.digests.get(name, hashlib.sha256(data).hexdigest())
        size = self.hub.sizes.get(name, len(data))
        lfs = {"oid": digest, "size": size, "pointerSize": 130}
        listed = {"type": "file", "path": name, "size": size, "oid": "0" * 40}
        return listed if digest is None else {**listed, "lfs": lfs}

    def _give(self, data: bytes) -> None:
        wanted = self.headers.get("Range")
        self.hub.ranges.append(wanted)
        time.sleep(self.hub.pause_s)
        match = re.match(r"bytes=(\d+)-(\d*)$", wanted or "") if self.hub.has_ranges else None
        start = int(match[1]) if match else 0
        stop = min(int(match[2]) + 1, len(data)) if match and match[2] else len(data)
        sent = self.hub.content_range or f"bytes {start}-{stop - 1}/{len(data)}"
        headers = {"Content-Range": sent} if match else {}
        self._answer(206 if match else 200, data[start:stop], headers)

    def _json(self, value: object, headers: dict[str, str] | None = None) -> None:
        self._answer(200, json.dumps(value).encode(), headers or {})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        is_cut = "/resolve/" in self.path and bool(self.hub.cuts)
        self.wfile.write(body[: self.hub.cuts.pop(0)] if is_cut else body)
        if is_cut and self.hub.is_reset:
            self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        self.close_connection = True
