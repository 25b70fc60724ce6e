"""`kvchat web`: the chat in a browser on this machine, one `kvchat` for each tab by textual-serve.

The server listens on the loopback interface only, and requires the access key in the printed
address: other users of the machine and scripts of web pages can reach the loopback too.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from app import paths
from app.cli.options import Count
from app.console import print_line
from engine.errors import EngineError
from engine.files import reason_of

PORT = 8765
HOW_TO_INSTALL = (
    "`pip install 'kvchat[web]'` (in a checkout: `.venv/bin/python -m pip install -e '.[web]'`)"
)


class WebError(EngineError):
    """The chat cannot be served."""

    title = "No web server"


@click.command(name="web", context_settings={"ignore_unknown_options": True})
@click.option(
    "--port",
    type=Count(0, 65535),
    default=PORT,
    show_default=True,
    help="Port on the loopback interface; 0: any free port.",
)
@click.option("--open", "opens", is_flag=True, help="Open the address in the default browser.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[MODEL] [OPTIONS]")
def command(port: int, arguments: tuple[str, ...], *, opens: bool) -> None:
    """Serve the chat to a browser on this machine until Ctrl+C.

    The address contains an access key, so other users cannot open the chat. Each tab runs a
    separate kvchat, with MODEL and OPTIONS.

    \b
    kvchat web
    kvchat web --open --port 9000 qwen2.5-7b --preset long-context
    """  # noqa: D301  click wants the backspace character itself
    from app.cli.main import chat  # which imports this module

    chat.make_context("kvchat web", [*arguments])  # refuses what no tab could be started with
    with ExitStack() as stack:

        def announce(address: str) -> None:
            print_line(f"kvchat is running at {address}")
            print_line("Ctrl+C stops the server and closes every tab.")
            if opens:
                click.launch(str(stack.enter_context(page_to(address))))

        serve(arguments, port, announce)


@contextmanager
def page_to(address: str) -> Iterator[Path]:
    """A file that only the user can read and that redirects a browser to an address.

    Other users can read the arguments of a process, so a browser does not get the key there.
    """
    paths.state_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="web-", dir=paths.state_dir()) as folder:
        page = Path(folder) / "kvchat.html"
        page.write_text(
            f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={escape(address)}">'
            f'<a href="{escape(address)}">kvchat</a>',
            encoding="utf-8",
        )
        yield page


def serve(arguments: Sequence[str], port: int, announce: Callable[[str], None]) -> None:
    """Serve the chat until Ctrl+C."""
    try:
        from app.cli.web_server import HOST, ChatServer
    except ImportError as error:
        raise WebError(f"textual-serve is not installed: {HOW_TO_INSTALL}") from error

    from engine.process.server_process import free_port

    port = port or free_port(HOST)
    word = secrets.token_urlsafe(16)
    try:
        ChatServer(arguments, port, word).run(
            lambda: announce(f"http://{HOST}:{port}/?word={word}")
        )
    except OSError as error:
        raise WebError(
            f"port {port} cannot be used ({reason_of(error)}): choose another port with --port"
        ) from error
