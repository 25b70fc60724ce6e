"""`kvchat completion`: what makes a shell complete commands, options, models and presets."""

from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

if TYPE_CHECKING:
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
    assert kind is not None, "click knows every shell of the choice"
    click.echo(kind(context.find_root().command, {}, "kvchat", VARIABLE).source())


def models(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem]":
    """The models of the folders that begin like what is typed; a path completes as files do."""
    from click.shell_completion import CompletionItem

    del context, parameter
    if "/" in incomplete or incomplete.startswith((".", "~")):
        return [CompletionItem(incomplete, type="file")]
    from app import paths
    from app.config import model_folders
    from engine.model.library import scan

    found = scan(model_folders(), cache_path=paths.header_cache_path())
    names = [entry.path.stem for entry in found if entry.problem is None]
    return [CompletionItem(name) for name in names if name.lower().startswith(incomplete.lower())]


def presets(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem]":
    """The presets that begin like what is typed."""
    from click.shell_completion import CompletionItem

    from app import paths
    from engine.presets.library import list_presets

    del context, parameter
    names = [entry.path.stem for entry in list_presets(paths.presets_dir())]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def themes(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem]":
    """The themes that begin like what is typed, by the names of their files."""
    from click.shell_completion import CompletionItem

    from app.paths import builtin_themes_dir, themes_dir

    del context, parameter
    folders = (builtin_themes_dir(), themes_dir())
    names = sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
