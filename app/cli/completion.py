"""`kvchat completion`, and the completion of models, presets and themes."""

from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from click.shell_completion import CompletionItem

VARIABLE = "_KVCHAT_COMPLETE"
"""Click's own name for it: the shell asks for completions by it."""


@click.command(name="completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    kvchat completion bash > ~/.local/share/bash-completion/completions/kvchat
    kvchat completion zsh > ~/.zfunc/_kvchat        # a folder of $fpath
    kvchat completion fish > ~/.config/fish/completions/kvchat.fish
    """  # noqa: D301  click wants the backspace character itself
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "kvchat", VARIABLE).source())


def models(_: click.Context, __: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Complete the name of a model; a path completes as files do."""
    from click.shell_completion import CompletionItem

    from app import paths
    from app.config import model_folders
    from engine.model.library import scan

    if "/" in incomplete or incomplete.startswith((".", "~")):
        return [CompletionItem(incomplete, type="file")]
    found = scan(model_folders(), cache_path=paths.header_cache_path())
    return _items([entry.path for entry in found if entry.problem is None], incomplete)


def presets(_: click.Context, __: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Complete the name of a preset."""
    from app import paths
    from engine.presets.library import list_presets

    return _items([entry.path for entry in list_presets(paths.presets_dir())], incomplete)


def themes(_: click.Context, __: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Complete the name of a theme."""
    from app.paths import builtin_themes_dir, themes_dir

    folders = (builtin_themes_dir(), themes_dir())
    return _items(sorted(path for each in folders for path in each.glob("*.toml")), incomplete)


def _items(files: "Iterable[Path]", incomplete: str) -> "list[CompletionItem]":
    """The names of files that begin like the typed text."""
    from click.shell_completion import CompletionItem

    names = dict.fromkeys(path.stem for path in files)
    begin = incomplete.lower()
    return [CompletionItem(name) for name in names if name.lower().startswith(begin)]
