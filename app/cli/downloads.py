"""`kvchat models get`, `rm`, `where` and `favourite`: the files of the user's models."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app import format as fmt
from app import paths
from app.cli.console import SlowReading, print_json, say, tell, tell_over

if TYPE_CHECKING:
    from app.library import HubOffer
    from engine.model.hub import HubModel

TELL_EVERY_BYTES = 64 << 20
"""Between two lines about a download, where there is no terminal."""


@click.command(name="get")
@click.argument("name")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where it goes; without it kvchat's own folder of models.",
)
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")
def get(name: str, *, folder: Path | None, is_sure: bool) -> None:
    """Download a model from the Hugging Face hub, after saying whether it fits.

    NAME is a name of the catalogue, with a quantisation behind a colon or without;
    hf:owner/repository, with :Q4_K_M or without; or hf:owner/repository/file.gguf.
    Without a quantisation it is Q4_K_M, or the largest file that fits.
    A download that was cut off goes on where it ended.

    \b
    kvchat models get qwen3-8b
    kvchat models get hf:owner/repository:Q5_K_M
    """  # noqa: D301  click wants the backspace character itself
    from app.library import verdict_text
    from engine.errors import ModelFileError
    from engine.model.hub import download

    offer, model = _offered(name)
    if model is None:
        print_offer(offer)
        raise ModelFileError(f"no file of {offer.repo} fits here: name one of these all the same")
    option = offer.option_of(model)
    say((model.name, "bold"), f"  {fmt.nbytes(model.nbytes)} from {offer.repo}")
    say(f"{model.name} {verdict_text(option)}")
    place = folder or paths.models_dir()
    if not is_sure:
        _confirm(f"Download it into {model.place(place).parent}?", "--yes downloads it")
    path = download(model, place, _progress(model.name))
    if sys.stderr.isatty():
        tell_over()
    say(str(path))


@click.command(name="rm")
@click.argument("name")
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")
def remove(name: str, *, is_sure: bool) -> None:
    """Delete the files of a model on this machine; it asks first."""
    from app.library import removal_of

    found = removal_of(_path(name))
    if not is_sure:
        _confirm(found.question, "--yes deletes it")
    found.run()
    say(f"deleted {found.name}, {fmt.nbytes(found.nbytes)}")


@click.command(name="where")
@click.argument("name")
def where(name: str) -> None:
    """Print the folder that a model lies in."""
    say(str(_path(name).parent))


@click.command(name="favourite")
@click.argument("name")
@click.option("--off", is_flag=True, help="It is none any more.")
def favourite(name: str, *, off: bool) -> None:
    """Mark a model, so that lists show it first."""
    from app.library import Favourites
    from engine.model.identity import model_identity

    path = _path(name)
    Favourites().mark(model_identity(path), is_favourite=not off)
    say(f"{path.stem} is {'no favourite any more' if off else 'a favourite'}")


def print_offer(offer: "HubOffer", *, as_json: bool = False) -> None:
    """Print the models of a repository with size, verdict, largest context and speed."""
    from app.console import console, plain_table
    from app.render.plan import speed_text
    from app.render.plan_lists import WORDS
    from app.sanitize import one_line
    from engine.planning.as_json import option_json

    if as_json:
        print_json([option_json(option) for option in offer.options])
        return
    rows = []
    for option in offer.options:
        word = "-" if option.verdict is None else WORDS[option.verdict]
        rows.append(
            (
                one_line(option.name),
                *map(one_line, option.facts),
                "partly" if option.spills else word,
                f"{fmt.nbytes(option.needed_bytes)} of {fmt.nbytes(option.free_bytes)}",
                "-" if option.max_n_ctx is None else fmt.count(option.max_n_ctx),
                speed_text(option.speed, option.bound) or "-",
            )
        )
    titles = ("name", "size", "here", "needs", "largest context", "speed")
    console().print(plain_table(titles, rows, numbers=("size", "needs", "largest context")))
    best = offer.best
    if best is not None:
        tell(f"`kvchat models get {best.address}` downloads the one to begin with.")


def _offered(name: str) -> "tuple[HubOffer, HubModel | None]":
    """The repository of a name, and the model of it that is meant or suits best."""
    from app.library import read_offer, repository_of
    from app.planning import user_planner
    from engine.model.hub import file_repository

    reading = SlowReading()
    of_file = file_repository(name)
    asked = of_file[0] if of_file else repository_of(name)
    offer = read_offer(asked, user_planner(), reading.header)
    reading.done()
    if of_file is not None:
        return offer, offer.named(of_file[1])
    if asked.quantization is not None:
        return offer, offer.named(asked.quantization)
    return offer, offer.best


def _path(name: str) -> Path:
    from app.config import model_folders
    from engine.model.library import find_model

    return find_model(name, model_folders())


def _confirm(question: str, otherwise: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody can be asked here: {otherwise}")
    if not click.confirm(question, err=True):
        raise click.Abort


def _progress(name: str) -> Callable[[int, int], None]:
    """Shows how far a download is: over one line of a terminal, else on a line now and then."""
    is_terminal = sys.stderr.isatty()
    told = -TELL_EVERY_BYTES

    def tell_bytes(n_done: int, n_all: int) -> None:
        nonlocal told
        text = f"{name}: {fmt.nbytes_of(n_done, n_all)}, {fmt.percent(n_done / max(n_all, 1))}"
        if is_terminal:
            tell_over(text)
        elif n_done - told >= TELL_EVERY_BYTES or n_done == n_all:
            tell(text)
            told = n_done

    return tell_bytes
