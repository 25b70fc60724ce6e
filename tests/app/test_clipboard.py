from pathlib import Path

import pytest
from textual import events
from textual.app import App

from app import clipboard
from app.clipboard import HarmlessPastes, copy


@pytest.fixture(autouse=True)
def bare_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("TMUX", "TERM_PROGRAM", "SSH_TTY", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


async def copied(text: str) -> tuple[str, str, str]:
    """Text sent to the terminal, and the notice with its severity."""
    app: App[None] = App()
    async with app.run_test() as pilot:
        copy(app, text)
        await app.workers.wait_for_complete()
        await pilot.pause()
        [notice] = app._notifications
        return app.clipboard, notice.message, notice.severity


async def test_the_terminal_gets_the_text_and_the_user_a_notice() -> None:
    text, message, severity = await copied("hello")
    assert (text, message, severity) == ("hello", "Copied 5 characters.", "information")


async def test_escape_sequences_do_not_reach_the_clipboard() -> None:
    text, _, _ = await copied("a\x1b[31mb")
    assert text == "a[31mb"


async def test_a_terminal_that_refuses_gets_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM_PROGRAM", "Apple_Terminal")
    _, message, severity = await copied("hello")
    assert "cmd+c" in message
    assert severity == "warning"


async def test_a_clipboard_program_is_used_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, bare_terminal: Path
) -> None:
    program(bare_terminal, "xclip", f"exec /bin/cat > {bare_terminal}/out")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("TMUX", "x")
    _, message, _ = await copied("hello")
    assert (bare_terminal / "out").read_text() == "hello"
    assert "tmux" not in message


async def test_a_program_that_fails_is_no_trouble(
    monkeypatch: pytest.MonkeyPatch, bare_terminal: Path
) -> None:
    program(bare_terminal, "xclip", "exit 1")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("TMUX", "x")
    text, message, _ = await copied("hello")
    assert text == "hello"
    assert "set-clipboard" in message


HOSTILE = "AAA\x1b[31mBBB\rCCC\x1b\x07\x1b[2\x1b[20"


@pytest.mark.parametrize("n_letters", [1, 2, 3, 5, 7, 1000])
def test_escapes_in_a_paste_press_no_keys(n_letters: int) -> None:
    typed = f"a\x1b[A\x1b[200~{HOSTILE}\x1b[201~b\x1b[200~second\x1b[201~\x1b[200~\x1b[201~c"
    parser, received = HarmlessPastes(), []
    for start in range(0, len(typed), n_letters):
        received += list(parser.feed(typed[start : start + n_letters]))
    keys = [event.key for event in received if isinstance(event, events.Key)]
    pastes = [event.text for event in received if isinstance(event, events.Paste)]
    assert keys == ["a", "up", "b", "c"]
    assert pastes[:2] == [HOSTILE.replace("\x1b", "\u241b"), "second"]


@pytest.mark.parametrize("n_letters", [1, 7, 4096])
def test_what_is_typed_stays_keys_and_many_letters_at_once_are_a_paste(n_letters: int) -> None:
    typed = f"{'a' * 200}\r\x1b[A\x1b[200~{'b' * 200}\x1b[201~{'c' * 30}"
    parser, received = HarmlessPastes(), []
    for start in range(0, len(typed), n_letters):
        received += list(parser.feed(typed[start : start + n_letters]))
    written = "".join(
        event.text if isinstance(event, events.Paste) else event.character or event.key
        for event in received
        if isinstance(event, events.Paste | events.Key)
    )
    assert written == f"{'a' * 200}\rup{'b' * 200}{'c' * 30}"
    n_keys = sum(isinstance(event, events.Key) for event in received)
    assert n_keys == (232 if n_letters < 100 else 32)


def test_bytes_of_a_terminal_that_are_no_text_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from textual.drivers import linux_driver

    for name in ("XTermParser", "getincrementaldecoder"):
        monkeypatch.setattr(linux_driver, name, getattr(linux_driver, name))
    clipboard.read_harmless_pastes()
    decoder = linux_driver.getincrementaldecoder("utf-8")()
    pieces = [decoder.decode(part) for part in (b"caf\xe9 \xe6\xbc", b"\xa2.")]
    assert "".join(pieces) == "caf\ufffd \u6f22."
