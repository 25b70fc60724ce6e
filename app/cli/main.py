"""The command `kvchat`: imports only the subcommand that is used and reports errors."""

import gc
import importlib
import io
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from app import __version__, paths
from app.cli import completion
from app.cli.options import (
    backend_options,
    draft_option,
    kv_options,
    opens_model,
    preset_option,
    server_option,
)
from app.console import EXIT_FAILED, EXIT_INTERRUPTED, log_line, print_line
from app.sanitize import close_terminal
from engine.errors import EngineError, ModelFileError
from engine.files import reason_of
from engine.validation import nearest

if TYPE_CHECKING:
    from app.opening import ModelRequest

DEFAULT_COMMAND = "chat"

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Answer": {
        "run": ("app.cli.run", "Answer one prompt and exit."),
        "batch": ("app.cli.batch", "Answer a file of prompts, several at once."),
        "replay": ("app.cli.replay", "Reproduce a recorded run token for token."),
        "web": ("app.cli.web", "Serve the chat to a browser on this machine."),
        "serve": ("app.cli.serve", "Start llama-server with a preset."),
    },
    "Plan": {
        "plan": ("app.cli.plan", "Compute the memory of a configuration without loading a model."),
        "fit": ("app.cli.fit", "Find the best configuration for a goal and a memory budget."),
        "export": ("app.cli.export", "Export settings to llama-server and other programs."),
        "import": ("app.cli.import_", "Make a preset from another program's settings."),
    },
    "Measure": {
        "bench": ("app.cli.bench", "Measure the speedup of speculation on prompt sets."),
        "compare": ("app.cli.compare", "Compare the speed of two settings on one prompt."),
        "tune": ("app.cli.tune", "Find the fastest settings: threads, flash attention, ubatch."),
        "cache-quality": (
            "app.cli.cache_quality",
            "Measure how much each KV cache type degrades the output.",
        ),
    },
    "Models and data": {
        "models": ("app.cli.models", "List, search, download and delete models."),
        "pairs": ("app.cli.pairs", "List the models that can draft for a model."),
        "chats": ("app.cli.chats", "List, search, export, import and delete chats."),
        "cache": ("app.cli.cache", "List, verify and delete saved states."),
        "settings": ("app.cli.settings", "List, explain and change settings."),
    },
    "Installation": {
        "doctor": ("app.cli.doctor", "Check the GPU, llama.cpp, the terminal and the folders."),
        "where": ("app.cli.where", "Print the folders that kvchat uses."),
        "completion": ("app.cli.completion", "Print the completion script for a shell."),
    },
}
"""Subcommands by the heading of the help: module, imported when the command is used, and help."""
COMMANDS = {name: row for group in GROUPS.values() for name, row in group.items()}

HELP = {"-h", "--help"}
HELP_NAMES = {"help_option_names": sorted(HELP)}
WEB_DRIVER = "TEXTUAL_DRIVER"
"""Environment variable that `kvchat web` sets: the screen is then no terminal."""


class TerminalError(EngineError):
    """The screen needs a terminal, but there is none."""

    title = "No terminal"


class LazyGroup(click.Group):
    """Imports a subcommand when it is used; any other first word is a model."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002  click's signature
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name == DEFAULT_COMMAND:
            return chat
        if cmd_name not in COMMANDS:
            return None
        loaded = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(loaded, click.Command)
        return loaded

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = bool(HELP & {*args})
        flags = (flag for param in self.get_params(ctx) for flag in param.opts)
        own = {*COMMANDS, DEFAULT_COMMAND, *flags}
        is_completed = ctx.resilient_parsing and not args
        if not is_completed and (not args or args[0] not in own):
            is_plain = args[:1] == ["--plain"]  # an option of `kvchat run`, expected here too
            args = ["run" if is_plain else DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # Not as click does it, which imports every command for its help.
        found = [
            CompletionItem(name, help=text)
            for name, (_, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        if incomplete and not found and not incomplete.startswith("-"):
            return completion.models(ctx, chat.params[0], incomplete)
        return [*found, *chat.shell_complete(click.Context(chat, ctx), incomplete)]

    def format_usage(
        self,
        ctx: click.Context,  # noqa: ARG002  click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        formatter.write_usage("kvchat", "[MODEL] [--draft MODEL] [--preset NAME] [--theme NAME]")
        formatter.write_usage("kvchat", "COMMAND [ARGUMENTS]", prefix="       ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in chat.params if isinstance(param, click.Option)]
        records = [record for option in options if (record := option.get_help_record(ctx))]
        with formatter.section("Chat options"):
            formatter.write_dl(records)
        super().format_options(ctx, formatter)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002  click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                rows = [(name, text) for name, (_, text) in commands.items()]
                formatter.write_dl(rows, col_max=16)


@click.group(cls=LazyGroup, context_settings=HELP_NAMES)
@click.version_option(__version__, message="kvchat %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Chat with a local language model and watch speculation and the KV cache.

    MODEL is a GGUF file, a name from `kvchat models`, part of such a name, or `starter`. Default:
    the default model in the settings, else the model used last.

    \b
    kvchat                                   open the chat
    kvchat qwen2.5-7b --preset long-context  with a model and a preset
    kvchat --server http://cellar:8080       with a server on another machine
    kvchat run "Name three colours."         print one answer
    kvchat plan qwen2.5-7b --vram 8GiB       compute memory and largest context
    kvchat fit qwen2.5-7b --goal context     find the largest context that fits
    kvchat export qwen2.5-7b                 print the arguments for llama-server
    """  # noqa: D301  click wants the backspace character itself
    shows_them_itself = ctx.invoked_subcommand in (DEFAULT_COMMAND, "doctor", "settings")
    if not shows_them_itself and not ctx.obj and paths.settings_path().exists():
        from app.config import load_settings  # pydantic takes 0.1 s

        problem = load_settings().problem
        if problem is not None:
            log_line(("kvchat: ", "yellow"), problem)


@click.command(name=DEFAULT_COMMAND, context_settings=HELP_NAMES)
@click.argument("model", required=False, shell_complete=completion.models)
@draft_option
@preset_option
@click.option(
    "--theme",
    metavar="NAME",
    help="Theme for this session.",
    shell_complete=completion.themes,
)
@server_option
@click.option(
    "--model",
    "-m",
    "named",
    metavar="MODEL",
    help="Same as MODEL.",
    shell_complete=completion.models,
)
@kv_options
@backend_options
@opens_model
def chat(asked: "ModelRequest", named: str | None, theme: str | None) -> int:
    """Open the full-screen chat on MODEL."""
    if asked.model is not None and named is not None:
        raise click.UsageError("specify the model once: as MODEL or with --model")
    asked = replace(asked, model=asked.model or named)
    try:
        _require_terminal(asked.model if asked.server is None else None)
        gc.disable()  # imports leave no garbage; `open_chat` enables it again
        from app.application import open_chat

        return open_chat(asked, theme=theme)
    except ModelFileError as error:
        near = nearest(asked.model or "", COMMANDS)
        hint = f"\nDid you mean the command `kvchat {near[0]}`?" if near else ""
        raise type(error)(f"{error}{hint}") from error


def main() -> None:
    """Run the command line and end the process with its exit code; never with a traceback."""
    # Output to a closed stream is an error, as on a full disk: a read-only file raises it.
    if sys.stderr is None and sys.stdout is not None and sys.stdout.isatty():
        sys.stderr = sys.stdout  # errors are printed where the user sees them
    for name, mode in (("stdin", "r"), ("stdout", "r"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the parent process
            nowhere = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115  to the end
            setattr(sys, name, nowhere)
    close_terminal()
    # Pydantic would look through all that is installed for plugins of its own, at every start.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of one command line.

    Click turns Ctrl+C into `Abort`, and a pipe whose reader has gone into a quiet `SystemExit`.
    """
    try:
        result: object = cli.main(arguments, prog_name="kvchat", standalone_mode=False)
    except click.Abort:
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        print_line(shown.getvalue(), err=True, nl=False)
        return error.exit_code
    except EngineError as error:
        log_line((error.title, "bold red"), f": {error}")
        return EXIT_FAILED
    except SystemExit as exit_:
        return _exit_code(exit_)
    except io.UnsupportedOperation:
        log_line("kvchat: standard output is closed")
        return EXIT_FAILED
    except OSError as error:
        where = "standard output" if error.filename is None else os.fsdecode(error.filename)
        log_line(f"kvchat: {where} cannot be used: {reason_of(error)}")
        return EXIT_FAILED
    return result if isinstance(result, int) else 0  # what a command gave to `ctx.exit`


def _exit_code(exit_: SystemExit) -> int:
    if isinstance(exit_.code, str):
        log_line(exit_.code)
        return EXIT_FAILED
    return int(exit_.code or 0)


def _require_terminal(model: str | None) -> None:
    """Make sure that there is a screen to fill; without one a mistyped command comes first."""
    if WEB_DRIVER in os.environ:
        return
    if os.environ.get("TERM") == "dumb":
        raise TerminalError(
            "the chat needs the full screen, but TERM=dumb has no cursor control: use "
            '`kvchat run --plain "prompt"`, or set TERM to the type of the terminal, such as '
            "xterm-256color"
        )
    streams = {"input": sys.stdin, "output": sys.stdout, "error": sys.stderr}
    missing = [name for name, stream in streams.items() if not stream.isatty()]
    if sys.__stderr__ is None and "error" not in missing:
        missing.append("error")  # Textual paints there, and `main` has only lent it another
    if not missing:
        return
    if model is not None:
        from app.config import model_folders
        from engine.model.library import find_model

        find_model(model, model_folders())
    raise TerminalError(
        f"the chat needs a terminal, but standard {', '.join(missing)} is not a terminal: start "
        'kvchat in a terminal, or use `kvchat run "prompt"` to print one answer'
    )
