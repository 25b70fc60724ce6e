"""The walker: a short walk finds nothing, and what is broken on purpose is found."""

import random
import sqlite3
from pathlib import Path
from typing import get_args

import pytest
from walker.checks import exception_in, reports, wrong_counts, wrong_figures
from walker.kills import Aim, Moment
from walker.life import MODULE
from walker.user import User
from walker.walk import Walk, replay

from tests.support.terminal import Screen

LOSS = """
from walker import watched
from walker.promises import PromisingStore

add_messages = PromisingStore.add_messages

def lose(self, chat, messages):
    stored = add_messages(self, chat, messages)
    self.writer.run(lambda db: db.execute("UPDATE messages SET content = 'x' || content"))
    return stored

watched.watch()
PromisingStore.add_messages = lose
watched.main()
"""
UNSAVED = """
from dataclasses import replace
from walker import watched
from walker.promises import PromisingStore

add_messages = PromisingStore.add_messages
watched.watch()
PromisingStore.add_messages = lambda self, chat, messages: add_messages(
    self, chat, [replace(each, content="something else") for each in messages]
)
watched.main()
"""
DEATH = """
import os
from walker import watched

answer, n_asked = watched._answer, []

async def die(application):
    n_asked.append(1)
    if len(n_asked) > 6:
        os._exit(3)
    await answer(application)

watched._answer = die
watched.watch()
watched.main()
"""
SMUGGLED = """
from walker import watched
from app.application import KvchatApp

answer = watched._answer

async def smuggle(application):
    application._driver.write("\\x1b]0;owned\\x07")
    await answer(application)

watched._answer = smuggle
watched.watch()
watched.main()
"""
PLANTED = {
    "loss": (LOSS, "loss"),
    "unsaved": (UNSAVED, "loss"),
    "death": (DEATH, "end"),
    "smuggled": (SMUGGLED, "escape"),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", get_args(Moment))
def test_a_kill_at_a_chosen_moment_is_no_finding(
    moment: Moment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def aimed(states: Path, rng: random.Random) -> Aim:
        return Aim(moment, 1, 0.0, "app", str(states))

    monkeypatch.setattr("walker.home.SHARE_OF_AIMED", 1.0)
    monkeypatch.setattr(Aim, "at_random", aimed)
    walk = walk_in(tmp_path, 4, user=Asker)
    assert walk.run(6) == 0
    assert walk.tally.n_kills["aimed"] > 0 or moment != "chat commits"


class Asker(User):
    """Asks, and waits until nothing waits for the model."""

    def step(self) -> str:
        self.ask()
        while (shown := self._life.sync()).n_waiting or shown.is_replying:
            pass
        return "ask"


def walk_in(folder: Path, seed: int, module: str = MODULE, user: type[User] = User) -> Walk:
    return Walk(seed, folder / "walk", folder / "found", module=module, user=user, max_found=1)


@pytest.mark.slow
def test_a_short_walk_finds_nothing(tmp_path: Path) -> None:
    walk = walk_in(tmp_path, 1)
    assert walk.run(25) == 0
    assert walk.tally.n_asked > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_broken_on_purpose_is_found_saved_and_found_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, kind = PLANTED[name]
    (tmp_path / "planted.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("walker.home.SHARE_OF_AIMED", 0.0)  # a killed engine answers nothing
    walk = walk_in(tmp_path, 2, module="planted", user=Asker)
    assert walk.run(60) == 1  # ends with the first finding
    assert [each.split()[0] for each in walk.tally.found] == [kind]
    output = capsys.readouterr().out
    assert f"FOUND {kind}" in output
    assert "seed 2, step" in output
    [case] = (tmp_path / "found").glob("2-*")
    assert replay(case, module="planted")
    assert not replay(case)


def test_a_screen_holds_what_it_was_sent_and_names_what_no_drawing_needs() -> None:
    screen = Screen(12, 3)
    screen.feed(b"\x1b[2;3H\x1b[1;31mab\xe6\xbc")
    screen.feed(b"\xa2c\x1b[0m\x1b[3;1Hlong is the line\x1b_{}\x1b")
    assert screen.strings == []
    screen.feed(b"\\\x1b]52;c;aGk=\x07")
    assert screen.lines == [" " * 12, "  ab漢c     ", "long is the "]
    assert screen.colored[1].startswith("\x1b[0m  \x1b[0m\x1b[1;31mab")
    assert (screen.strings, screen.strange) == (["{}"], [])
    screen.feed(b"\x1b]0;owned\x07\x1b[5i\x0e")
    assert screen.strange == ["\x1b]0;owned\x07", "\x1b[5i", "\x0e"]


@pytest.mark.parametrize(
    ("lines", "is_wrong"),
    [
        (["│ accept      71%  70%", "│ validated   5   9", "│ refuted     2   4"], False),
        (["│ accept      2/3  70%", "│ validated   2   9", "│ refuted     1   4"], False),
        (["│ accept      71%  70%", "│ validated   5   9", "│ refuted     5   4"], True),
        (["│ accept      2/3  70%", "│ validated   1   9", "│ refuted     2   4"], True),
        (["│ accept      -", "│ validated   -", "│ refuted     -"], False),
        (["│ validated   5   9"], False),
        (["│ · accept 2/3 ││ accept  -  0%", "│ validated   0  refuted 0"], False),
    ],
)
def test_figures_that_contradict_each_other_are_named(lines: list[str], is_wrong: bool) -> None:
    assert bool(wrong_figures(lines)) is is_wrong


@pytest.mark.parametrize(
    ("stats", "n_tokens", "n_wrong"),
    [
        ('{"n_drafted": 3, "n_verified": 3, "n_examined": 2, "n_accepted": 1, "n_emitted": 4}',
         4, 0),
        ('{"n_drafted": 3, "n_verified": 4, "n_examined": 2, "n_accepted": 1, "n_emitted": 4}',
         4, 1),
        ('{"n_emitted": 4, "n_thinking": 5, "n_prompt": 2, "n_reused": 3}', 4, 2),
        ('{"n_emitted": 4, "n_prompt": 2, "n_reused": null}', 4, 0),
        ('{"n_drafted": 2, "n_verified": 2, "n_examined": 2, "n_accepted": 2, "n_emitted": 3,'
         ' "by_source": {"suffix": {"n_drafted": 2, "n_verified": 1, "n_examined": 2,'
         ' "n_accepted": 2}}, "by_position": [{"n_examined": 1, "n_accepted": 1}]}', 3, 3),
    ],
)  # fmt: skip
def test_counts_that_do_not_add_up_are_named(
    stats: str, n_tokens: int, n_wrong: int, tmp_path: Path
) -> None:
    path = tmp_path / "chats.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE messages (id INTEGER, stats TEXT, token_ids BLOB)")
    connection.execute("INSERT INTO messages VALUES (7, ?, ?)", (stats, bytes(4 * n_tokens)))
    connection.commit()
    connection.close()
    problems, newest = wrong_counts(path, 0)
    assert (len(problems), newest) == (n_wrong, 7)
    assert wrong_counts(path, 7) == ([], 7)


def test_an_exception_that_was_painted_or_logged_or_reported_is_found_once(tmp_path: Path) -> None:
    assert exception_in(b"all is well, without any exception") is None
    painted = "\x1b[31m╭─── \x1b[1mTraceback \x1b[2m(most recent call last)\x1b[0m ──╮\r\nOSError"
    assert "OSError" in str(exception_in(painted.encode()))
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "one").write_text("x")
    (tmp_path / "worker.log").write_text("x\nTraceback (most recent call last):\n  ValueError: odd")
    (tmp_path / "other.log").write_text("all is well")
    known: dict[Path, int] = {}
    assert len(list(reports(tmp_path, known))) == 2
    assert list(reports(tmp_path, known)) == []
