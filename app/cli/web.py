"""`kvchat web`: the chat in a browser on this machine."""

import click

from app.cli.console import say
from app.cli.options import Count

PORT = 8765
MOST_PORT = 65535


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
    from app.web import serve

    def tell(address: str) -> None:
        say(f"kvchat is at {address}")
        say("Ctrl+C ends it, and every tab with it.")
        if opens:
            click.launch(address)

    serve(arguments, port, tell)
