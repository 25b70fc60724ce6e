"""`kvchat web`: the chat in a browser on this machine, one `kvchat` for each tab by textual-serve.

Whoever reaches the address can read every chat, so it listens on the loopback only, and answers
nobody who lacks the word in the address that was printed: not another user of the machine, and not
a page of the web, whose scripts can reach the loopback too.
"""

import hmac
import secrets
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from app.cli.console import say
from app.cli.options import Count
from engine.errors import EngineError

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler, Middleware

HOST = "127.0.0.1"
PORT = 8765
MOST_PORT = 65535
WORD_BYTES = 16
COOKIE = "kvchat-word"
MAIN = "from app.cli.main import main; main()"
HOW_TO_INSTALL = (
    "`pip install 'kvchat[web]'`, from a checkout `.venv/bin/python -m pip install -e '.[web]'`"
)
REFUSED = "Open the address that `kvchat web` printed: it holds a word that this one lacks.\n"


class WebError(EngineError):
    """The chat cannot be served."""

    title = "No web server"


@click.command(name="web", context_settings={"ignore_unknown_options": True})
@click.option(
    "--port",
    type=Count(0, MOST_PORT),
    default=PORT,
    show_default=True,
    help="Port on the loopback; 0 takes any that is free.",
)
@click.option("--open", "opens", is_flag=True, help="Open the address in the usual browser.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[MODEL] [OPTIONS OF CHAT]")
def command(port: int, arguments: tuple[str, ...], *, opens: bool) -> None:
    """Serve the chat to a browser on this machine until Ctrl+C; nobody else can reach it.

    Each tab is a kvchat of its own. What is behind `web` is what `kvchat` itself takes.

    \b
    kvchat web
    kvchat web --open --port 9000 qwen2.5-7b --preset long-context
    """  # noqa: D301  click wants the backspace character itself

    def tell(address: str) -> None:
        say(f"kvchat is at {address}")
        say("Ctrl+C ends it, and every tab with it.")
        if opens:
            click.launch(address)

    serve(arguments, port, tell)


def serve(arguments: Sequence[str], port: int, tell: Callable[[str], None]) -> None:
    """Serve the chat until Ctrl+C.

    Args:
        arguments: Of `kvchat` in each tab.
        port: On the loopback; 0 takes any that is free.
        tell: Gets the address once it can be opened.

    Raises:
        WebError: textual-serve is not installed, or the port cannot be used.
    """
    try:
        from aiohttp import web
        from textual_serve.server import Server
    except ImportError as error:
        raise WebError(f"textual-serve is not installed: {HOW_TO_INSTALL}") from error

    from engine.process.server_process import free_port

    port = port or free_port(HOST)
    word = secrets.token_urlsafe(WORD_BYTES)
    address = f"http://{HOST}:{port}"

    class ChatServer(Server):
        """textual-serve's server behind the word, and quiet."""

        async def _make_app(self) -> web.Application:
            made = await super()._make_app()
            made.middlewares.append(guard(word, port))
            return made

        async def on_startup(self, app: web.Application) -> None:
            """Say nothing: it does not listen yet."""

    served = ChatServer(command_line(arguments), HOST, port, title="kvchat", public_url=address)
    try:
        web.run_app(
            served._make_app(),
            host=HOST,
            port=port,
            print=lambda _: tell(f"{address}/?word={word}"),
        )
    except OSError as error:
        raise WebError(
            f"port {port} cannot be used ({error.strerror}): choose another with --port"
        ) from error


def command_line(arguments: Sequence[str]) -> str:
    """The shell's line that opens the chat in a tab."""
    return f"exec {shlex.join([sys.executable, '-c', MAIN, 'chat', *arguments])}"


def guard(word: str, port: int) -> "Middleware":
    """The check that every request passes: its host, its origin and the word.

    The host is checked because a page's own name may lead to the loopback, the origin because a
    page may open a websocket to anywhere.
    """
    from aiohttp import web

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
        if asked and not response.prepared:
            response.set_cookie(f"{COOKIE}-{port}", word, httponly=True, samesite="Strict")
        return response

    return check
