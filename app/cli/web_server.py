"""textual-serve's server with an access key and kvchat's page, and one `kvchat` for each tab."""

import asyncio
import hmac
import json
import logging
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from aiohttp import web
from textual_serve import server
from textual_serve.app_service import AppService

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler, Middleware

HOST = "127.0.0.1"
COOKIE = "kvchat-word"
PAGE = Path(__file__).parent / "web_page"
MAIN = "from app.cli.main import main; main()"
MAX_COLUMNS, MAX_ROWS = 500, 200
"""Largest size of a tab: the chat paints every cell of its screen."""
MAX_PROBLEM = 4000
"""Bytes of the error output of a failed kvchat, which its page shows."""
END_S = 8.0
"""Time for the kvchat of a closed tab to save and end, before it is killed."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; "
        "img-src 'self' data:; connect-src 'self' ws://{host}; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of each response: the browser loads nothing from other servers."""
REFUSED = "Open the full address that `kvchat web` printed, including the access key.\n"


class Tab(AppService):
    """The kvchat of one tab, with a bounded size; it ends within `END_S`."""

    problem: ClassVar[str] = ""
    """Standard error of the kvchat that failed last."""

    async def run(self) -> None:
        """Run it, and close its page however it ends."""
        assert self._process is not None
        errors = Recorded(self._process.stderr)
        self._process.stderr = errors  # type: ignore[assignment]  # of which it is read
        await super().run()
        Tab.problem = errors.text if await self._process.wait() else ""
        await self.remote_close()

    async def start(self, width: int, height: int) -> None:
        await super().start(_bounded(width, MAX_COLUMNS), _bounded(height, MAX_ROWS))

    async def set_terminal_size(self, width: int, height: int) -> None:
        await super().set_terminal_size(_bounded(width, MAX_COLUMNS), _bounded(height, MAX_ROWS))

    async def stop(self) -> None:
        try:
            async with asyncio.timeout(END_S):
                await super().stop()
        except TimeoutError:
            if self._process is not None:
                self._process.kill()


class Recorded:
    """A stream that stores the last bytes that were read from it."""

    def __init__(self, stream: asyncio.StreamReader | None) -> None:
        self._stream = stream
        self._data = b""

    @property
    def text(self) -> str:
        """The end of the read text."""
        return self._data.decode("utf-8", "replace")

    async def read(self, n_bytes: int) -> bytes:
        """Read and record at most this many bytes."""
        data = b"" if self._stream is None else await self._stream.read(n_bytes)
        self._data = (self._data + data)[-MAX_PROBLEM:]
        return data


class ChatServer(server.Server):
    """textual-serve's server with an access key, which logs nothing."""

    def __init__(self, arguments: Sequence[str], port: int, word: str) -> None:
        self._guard = guard(word, port)
        vars(server)["AppService"] = Tab  # textual-serve has no parameter for the class
        # It logs tracebacks for closed pages; errors of a tab are shown in its page.
        logging.getLogger("textual-serve").disabled = True
        super().__init__(
            command_line(arguments),
            HOST,
            port,
            title="kvchat",
            public_url=f"http://{HOST}:{port}",
            templates_path=PAGE,
        )

    def run(self, announce: Callable[[], None]) -> None:
        """Serve until Ctrl+C; `announce` is called when browsers can connect."""
        app = self._make_app()
        web.run_app(
            app, host=HOST, port=self.port, shutdown_timeout=END_S, print=lambda _: announce()
        )

    async def _make_app(self) -> web.Application:
        made = await super()._make_app()
        made.middlewares.append(self._guard)
        made.router.add_get("/kvchat.js", _script)
        made.router.add_get("/problem", _problem)
        return made

    async def _process_messages(
        self, websocket: web.WebSocketResponse, app_service: AppService
    ) -> None:
        """Forward the messages of the page; others are ignored."""
        async for message in websocket:
            match _parsed(message.data):
                case ["stdin", str(text)]:
                    await app_service.send_bytes(text.encode("utf-8", "replace"))
                case ["resize", {"width": int(width), "height": int(height)}]:
                    await app_service.set_terminal_size(width, height)
                case ["ping", str() | int() | float() as what]:
                    await websocket.send_json(["pong", what])
                case ["blur", *_]:
                    await app_service.blur()
                case ["focus", *_]:
                    await app_service.focus()

    async def on_startup(self, app: web.Application) -> None:
        """Log nothing: it does not listen yet."""


async def _script(_: web.Request) -> web.FileResponse:
    return web.FileResponse(PAGE / "kvchat.js")


async def _problem(_: web.Request) -> web.Response:
    return web.Response(text=Tab.problem)


def _parsed(data: object) -> object:
    try:
        return json.loads(data) if isinstance(data, str) else None
    except (ValueError, RecursionError):
        return None


def _bounded(n_cells: object, limit: int) -> int:
    return max(1, min(n_cells, limit)) if isinstance(n_cells, int) else 1


def command_line(arguments: Sequence[str]) -> str:
    """The shell command that opens the chat in a tab; it imports nothing from its folder."""
    return f"exec {shlex.join([sys.executable, '-P', '-c', MAIN, 'chat', *arguments])}"


def guard(word: str, port: int) -> "Middleware":
    """The check of host, origin and access key of every request.

    A domain of a web page may resolve to the loopback address, and a page may open a websocket to
    any address.
    """
    hosts = {f"{name}:{port}" for name in (HOST, "localhost")}
    origins = {None, *(f"http://{host}" for host in hosts)}

    @web.middleware
    async def check(request: web.Request, handler: "Handler") -> web.StreamResponse:
        asked = request.query.get("word", "")
        known = asked or request.cookies.get(f"{COOKIE}-{port}", "")
        is_ours = request.host in hosts and request.headers.get("Origin") in origins
        if not (is_ours and hmac.compare_digest(known.encode(), word.encode())):
            return web.Response(status=403, text=REFUSED)
        response = await handler(request)
        for name, value in HEADERS.items():
            response.headers[name] = value.format(host=f"{HOST}:{port}")
        if asked and not response.prepared:
            response.set_cookie(f"{COOKIE}-{port}", word, httponly=True, samesite="Strict")
        return response

    return check
