import os
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from app import __version__, paths
from app.cli import main
from app.store.errors import StoreError
from engine.errors import ModelFileError
from tests.app.cli.conftest import MAIN, kvchat, refusal, text_of


def failing_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let `kvchat where` raise."""

    def fail(*arguments: object, **options: object) -> None:
        raise error

    import app.cli.where

    monkeypatch.setattr(app.cli.where, "files_and_folders", fail)


def test_help_names_every_command_and_shows_examples() -> None:
    text = text_of("--help")
    for part in (*main.COMMANDS, "--draft MODEL", "--preset", "--theme", "kvchat run", "[MODEL]"):
        assert part in text
    assert "Traceback" not in text


@pytest.mark.parametrize("flags", [["-h"], ["--help"]])
def test_the_chat_has_help_of_its_own(flags: list[str]) -> None:
    assert "Open the full-screen chat" in text_of("some-model", *flags)


def test_the_version_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"kvchat {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--theme", "nord"], ["chat"]])
def test_without_a_terminal_the_chat_names_kvchat_run(arguments: list[str]) -> None:
    done = kvchat(*arguments)
    assert done.returncode == 1
    assert "No terminal" in done.stderr
    assert 'kvchat run "prompt"' in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "arguments", [["--nonsense"], ["where", "--nonsense"], ["a-model", "one-too-many"]]
)
def test_a_wrong_command_line_ends_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    assert "Usage: kvchat" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ModelFileError("no header"), StoreError("no space")])
def test_an_error_is_a_title_and_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: ModelFileError
) -> None:
    failing_with(monkeypatch, error)
    assert main.run(["where"]) == 1
    assert capsys.readouterr().err == f"{error.title}: {error}\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_ctrl_c_ends_with_130_and_reports_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    failing_with(monkeypatch, error)
    assert main.run(["where"]) == 130
    assert capsys.readouterr().err.strip() == ""


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (PermissionError(13, "Permission denied", "/secret"), "/secret"),
        (OSError(28, "No space left on device"), "standard output"),
    ],
)
def test_an_error_of_the_system_is_one_line(
    error: OSError,
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing_with(monkeypatch, error)
    assert main.run(["where"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kvchat: {named} ")
    assert line.endswith(error.strerror)


def test_a_reader_that_goes_away_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "where"], stdout=write_end, stderr=subprocess.PIPE, text=True
    )
    os.close(write_end)
    assert process.communicate()[1] == ""


def test_a_mistyped_command_without_a_terminal_is_reported_with_the_nearest() -> None:
    done = kvchat("modles")
    assert done.returncode == 1
    assert done.stderr.startswith("No such model: no file or model is called 'modles'")
    assert "Did you mean the command `kvchat models`?" in done.stderr
    assert "No terminal" not in done.stderr


def settings(text: str) -> None:
    path = paths.settings_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[chat]\ntemprature = 1\n", "[chat] temprature"),
        ("\n[cache]\ncold = '9 giraffes'\n", "[cache] cold"),
        ("[cahce]\n", "[cahce]"),
        ("[models\n", "line 1, column 8"),
    ],
)
@pytest.mark.parametrize("command", [["where"], ["cache"], ["run", "x", "-m", "x"]])
def test_every_command_reports_what_is_wrong_in_the_settings(
    command: list[str], text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings(text)
    main.run(command)
    shown = capsys.readouterr().err
    assert shown.startswith("kvchat: ")
    assert str(paths.settings_path()) in shown
    assert message in shown
    assert shown.count("config.toml") == 1


@pytest.mark.parametrize("command", [["prune"], ["prune", "--older", "1d"], ["clear", "--yes"]])
def test_nothing_is_deleted_by_settings_that_cannot_be_read(command: list[str]) -> None:
    text = "[cache]\ncold = '100GiB'\n[models\n"
    settings(text)
    assert "nothing was deleted" in refusal("cache", *command)
    assert paths.settings_path().read_text() == text


def test_help_does_not_read_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    settings("[models\n")
    assert main.run(["run", "--help"]) == 0
    assert capsys.readouterr().err == ""


def helps(command: click.Command, context: click.Context) -> Iterator[str]:
    yield command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from helps(inner, click.Context(inner, parent=context, info_name=name))


def test_every_help_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    texts = [*helps(main.cli, click.Context(main.cli, info_name="kvchat"))]
    assert len(texts) > 25
    wide = [line for text in texts for line in text.splitlines() if len(line) > 80]
    assert wide == []


@pytest.mark.parametrize(
    ("command", "closed"),
    [
        ("run --model nothing", "<&-"),
        ("models cards 4090", ">&-"),
        ("where", "2>&-"),
        ("", "<&- >&- 2>&-"),
        ("run --model nothing", "<&- >&- 2>&-"),
    ],
)
def test_a_closed_stream_ends_no_command_with_a_traceback(command: str, closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -c "$1" {command} {closed}', sys.executable, MAIN],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1, 2)


@pytest.mark.parametrize("command", ["--version", "where"])
def test_output_that_goes_nowhere_is_reported_and_fails(command: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -c "$1" {command} >&-', sys.executable, MAIN],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "kvchat: standard output is closed\n")


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "~nosuchuser/x.gguf"],
        ["fit", "~nosuchuser/x.gguf"],
        ["export", "~nosuchuser/x.gguf"],
        ["import", "~nosuchuser/x.sh"],
        ["plan", "qwen3-8b", "--draft", "~nosuchuser/x.gguf"],
        ["plan", "qwen3-8b", "--mmproj", "~nosuchuser/x.gguf"],
        ["plan", "qwen3-8b", "--lora", "~nosuchuser/x.gguf:0.5"],
        ["plan", "qwen3-8b", "--preset", "~nosuchuser/x.toml"],
        ["run", "-m", "~nosuchuser/x.gguf", "hi"],
        ["chats", "import", "~nosuchuser/x.json"],
    ],
)
def test_a_home_of_nobody_is_a_file_that_is_not_there(words: list[str]) -> None:
    assert main.run(words) in (1, 2)
