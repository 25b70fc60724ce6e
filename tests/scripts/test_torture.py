"""What looks for loss and wrong answers finds them, and blames nobody for the torture's kills."""

import inspect
import math
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from torture.app import PromisingStore, WatchedClient
from torture.kills import moment_of
from torture.ledger import Ends, Ledger, written_by_two
from torture.oracle import Asked, Oracle, asked_in
from torture.plan import Aim, Choice, Journal, Line, Plan, Reader, plan_of_environment
from torture.rounds import drafts_of_the_dead, when

from app.store.records import NewTurn
from engine.requests import Message

SCRIPTS = Path(__file__).parents[2] / "scripts"
NOBODY: dict[str, set[int]] = {"app": set(), "worker": set()}


def saved_chat(folder: Path) -> tuple[Path, Ledger, int]:
    """Save a question and a reply, and give the database with what it promised."""
    path, journal = folder / "chats.db", folder / "journal"
    with PromisingStore(path, Journal(journal), "none") as store:
        turn = store.add_turn(NewTurn(None, "Why?", None, None, None, "v"))
        reply = turn.messages[-1]
        store.finish_message(
            replace(
                store.message(reply.id),
                content="So.",
                token_ids=(1, 2),
                vocabulary_id="v",
                seed=1,
                finish_reason="end",
                stats=None,
            ),
        )
    ledger = Ledger()
    ledger.take(Reader(journal).new_lines())
    return path, ledger, reply.id


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize("kind", [WatchedClient, PromisingStore])
def test_what_watches_takes_all_that_the_watched_one_takes(kind: type) -> None:
    for name, watched in inspect.getmembers(kind.__base__, inspect.isfunction):
        taken = inspect.signature(getattr(kind, name)).parameters
        is_own = name.startswith("_")
        assert is_own or taken.keys() >= inspect.signature(watched).parameters.keys(), name


def test_a_database_that_kept_everything_is_not_blamed(tmp_path: Path) -> None:
    path, ledger, _ = saved_chat(tmp_path)
    assert len(ledger.messages) == 2
    assert ledger.broken_promises(path) == []


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("DELETE FROM messages WHERE role = 'assistant'", "is gone"),
        ("UPDATE messages SET content = 'Perhaps.' WHERE role = 'assistant'", "'Perhaps.'"),
        ("UPDATE messages SET token_ids = x'01000000' WHERE role = 'assistant'", "other tokens"),
        ("UPDATE messages SET content = 'Why? Oh.' WHERE role = 'user'", "'Why? Oh.'"),
    ],
)
def test_what_was_lost_or_changed_is_found(tmp_path: Path, statement: str, complaint: str) -> None:
    path, ledger, _ = saved_chat(tmp_path)
    change(path, statement)
    assert any(complaint in problem for problem in ledger.broken_promises(path))


def test_a_reply_that_goes_on_may_be_longer_but_not_another(tmp_path: Path) -> None:
    path, ledger, reply = saved_chat(tmp_path)
    ledger.take([{"kind": "reopening", "at": 0, "id": reply}])
    change(path, "UPDATE messages SET content = 'So. And on' WHERE role = 'assistant'")
    assert ledger.broken_promises(path) == []
    change(path, "UPDATE messages SET content = 'No.' WHERE role = 'assistant'")
    assert ledger.broken_promises(path) != []


def test_a_deleted_chat_must_be_gone_and_one_half_deleted_may_be(tmp_path: Path) -> None:
    path, ledger, _ = saved_chat(tmp_path)
    ledger.take([{"kind": "deleting", "at": 0, "chat": 1}])
    assert ledger.broken_promises(path) == []
    ledger.take([{"kind": "deleted", "at": 1, "chat": 1}])
    assert ledger.broken_promises(path) == ["chat 1 was deleted and is there"]


def test_a_database_that_was_broken_is_found(tmp_path: Path) -> None:
    path, ledger, _ = saved_chat(tmp_path)
    path.write_bytes(b"no database at all" * 500)
    assert any("damaged" in problem for problem in ledger.broken_promises(path))


def test_a_line_that_a_kill_cut_is_left_out_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Journal(path).tell("one", n=1)
    with path.open("ab") as file:
        file.write(b'{"kind": "tw')
    reader = Reader(path)
    assert [line["kind"] for line in reader.new_lines()] == ["one"]
    with path.open("ab") as file:
        file.write(b'o", "at": 1}\n')
    assert [line["kind"] for line in reader.new_lines()] == ["two"]


def test_lines_of_several_processes_are_put_in_order(tmp_path: Path) -> None:
    first, second = Journal(tmp_path / "1"), Journal(tmp_path / "2")
    second.tell("early")
    first.tell("late")
    lines = Reader(tmp_path / "1").new_lines() + Reader(tmp_path / "2").new_lines()
    assert [line["kind"] for line in sorted(lines, key=when)] == ["early", "late"]


@pytest.mark.parametrize(
    ("exit_code", "struck", "lines", "n_wrong"),
    [
        (0, NOBODY, [], 0),
        (1, NOBODY, [], 1),
        (-9, NOBODY, [], 1),
        (-9, {"app": {7}, "worker": set()}, [], 0),
        (-11, {"app": {7}, "worker": set()}, [], 1),
        (0, NOBODY, [{"kind": "stopped", "exit_code": -9, "message": "killed"}], 1),
        (0, {"app": set(), "worker": {8}},
         [{"kind": "stopped", "exit_code": -9, "message": "killed"}], 0),
        (0, {"app": set(), "worker": {8}},
         [{"kind": "stopped", "exit_code": -6, "message": "aborted"}], 1),
        (0, NOBODY, [{"kind": "closed", "pid": 8, "exit_code": 1}], 1),
        (0, NOBODY, [{"kind": "closed", "pid": 8, "exit_code": 0}], 0),
        (0, NOBODY, [{"kind": "failed", "title": "Decoding failed", "message": "m"}], 1),
        (0, NOBODY, [{"kind": "failed", "title": "The context is full", "message": "m"}], 0),
        (0, NOBODY, [{"kind": "lost", "message": "a reply did not end"}], 1),
        (0, NOBODY, [{"kind": "notice", "text": "the chat database was damaged"}], 1),
    ],
)  # fmt: skip
def test_only_ends_that_the_torture_did_not_make_are_blamed(
    exit_code: int, struck: dict[str, set[int]], lines: list[Line], n_wrong: int
) -> None:
    assert len(list(Ends(7, exit_code, struck).wrong(lines))) == n_wrong


def test_half_written_files_of_the_dead_are_found_and_those_of_the_living_left_alone(
    tmp_path: Path,
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for pid in (ended.pid, os.getpid()):
        (tmp_path / f"a.kv.xyz.{pid}.new").touch()
    assert [path.name for path in drafts_of_the_dead(tmp_path)] == [f"a.kv.xyz.{ended.pid}.new"]


def test_the_answers_of_a_life_are_put_together_from_its_rounds() -> None:
    lines: list[Line] = [
        {"kind": "asked", "number": 1, "choice": "m", "continues": [5],
         "continues_text": "So",
         "messages": [["user", "Why?", None, None], ["assistant", "So.", [1, 2], "v"]]},
        {"kind": "reused", "number": 1, "hot": 0, "warm": 3, "cold": 4, "prompt": 9},
        {"kind": "tokens", "number": 1, "tokens": [6, 7], "margins": [0.5, 1.0]},
        {"kind": "tokens", "number": 1, "tokens": [8], "margins": [0.25]},
        {"kind": "asked", "number": 2, "choice": "m", "continues": [], "continues_text": "",
         "messages": []},
    ]  # fmt: skip
    (asked,) = asked_in(lines)
    assert (asked.tokens, asked.margins) == ([6, 7, 8], [0.5, 1.0, 0.25])
    assert (asked.continues, asked.continues_text) == ((5,), "So")
    assert asked.messages[1].token_ids == (1, 2)
    assert asked.is_restored


@pytest.mark.parametrize(
    ("event", "path", "values", "moment"),
    [
        ("open", "n/k.kv.ab.12.new", ("p", None, os.O_RDWR | os.O_CREAT), "snapshot is opened"),
        ("open", "n/k.kv", ("p", "rb", os.O_RDONLY), "snapshot is read"),
        ("open", "n", ("p", None, os.O_RDONLY | os.O_DIRECTORY), None),
        ("open", "index.db-wal", ("p", "rb", os.O_RDONLY), None),
        ("os.rename", "n/k.kv.ab.12.new", ("p", "q"), "snapshot is renamed"),
        ("os.remove", "n/k.kv", ("p",), "snapshot is removed"),
        ("os.remove", "n/k.kv.ab.12.new", ("p",), None),
    ],
)
def test_what_happens_to_a_snapshot_is_told_apart(
    event: str, path: str, values: tuple[object, ...], moment: str | None
) -> None:
    assert moment_of(event, path, values) == moment


@pytest.mark.parametrize(
    ("owner", "second_at", "n_found"), [("chat:1", 3, 1), ("chat:2", 3, 0), ("chat:1", 6, 0)]
)
def test_a_chat_that_two_write_at_once_is_found(owner: str, second_at: int, n_found: int) -> None:
    first: list[Line] = [
        {"kind": "asked", "at": 1, "owner": "chat:1"},
        {"kind": "tokens", "at": 2},
        {"kind": "done", "at": 5},
        {"kind": "end", "at": 9},
    ]
    second: list[Line] = [
        {"kind": "asked", "at": second_at, "owner": owner},
        {"kind": "tokens", "at": second_at + 1},
    ]
    assert len(written_by_two([first, second])) == n_found


def test_an_answer_is_blamed_for_another_token_or_another_bit_of_its_lead(
    starter_path: Path,
) -> None:
    oracle = Oracle(Choice(str(starter_path)))
    asked = Asked(Choice(str(starter_path)).name, (Message("user", "What is a bridge?"),))
    asked.tokens, asked.margins = [0, 0, 0], [0.0, 0.0, 0.0]
    for at in range(3):
        wrong = oracle.judge(asked)
        assert wrong is not None
        assert wrong.at == at
        asked.tokens[at], asked.margins[at] = wrong.right, wrong.right_margin
    assert oracle.judge(asked) is None
    asked.margins[1] = math.nextafter(asked.margins[1], math.inf)
    wrong = oracle.judge(asked)
    assert wrong is not None
    assert wrong.at == 1
    assert wrong.said == wrong.right
    assert "leads by" in str(wrong)
    oracle.close()


def killed_child(code: str, plan: Plan) -> tuple[int, list[Line]]:
    done = subprocess.run(
        [sys.executable, "-c", code], env=plan.environment(), capture_output=True, check=False
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, Reader(Path(plan.journal)).new_lines()


def plan_in(tmp_path: Path, aim: Aim) -> Plan:
    plan = Plan(str(tmp_path), str(tmp_path / "j"), 1, (Choice("m.gguf"),), aim)
    plan.states.mkdir(parents=True)
    return plan


WRITER = """
from pathlib import Path
from engine.files import replace_file
from torture.kills import aim_in_worker
from torture.plan import Journal
from torture.plan import plan_of_environment
plan = plan_of_environment()
aim_in_worker(plan, Journal(Path(plan.journal)))
for n in range(3):
    replace_file(plan.states / f"{n}.kv", [b"x" * 4096], is_durable=False)
"""


def test_a_process_dies_before_the_snapshot_that_it_writes_has_its_name(tmp_path: Path) -> None:
    plan = plan_in(tmp_path, Aim("snapshot is renamed", nth=2))
    exit_code, lines = killed_child(WRITER, plan)
    assert exit_code == -signal.SIGKILL
    assert [line["kind"] for line in lines] == ["struck"]
    names = sorted(path.name for path in plan.states.iterdir())
    assert names[0] == "0.kv"
    assert len(names) == 2
    assert names[1].startswith("1.kv.")


def test_an_aim_that_is_never_reached_kills_nobody(tmp_path: Path) -> None:
    exit_code, lines = killed_child(WRITER, plan_in(tmp_path, Aim("snapshot is renamed", nth=4)))
    assert (exit_code, lines) == (0, [])


COMMITTER = """
import sqlite3
from pathlib import Path
from torture.kills import aim_in_app
from torture.plan import Journal
from torture.plan import plan_of_environment
plan = plan_of_environment()
aim_in_app(plan, Journal(Path(plan.journal)), lambda: None)
db = sqlite3.connect(plan.home + "/x.db", isolation_level=None)
for n in range(4):
    db.execute("BEGIN IMMEDIATE")
    db.execute("CREATE TABLE t%d (a)" % n)
    db.execute("COMMIT")
"""


def test_a_process_dies_in_front_of_a_commit_and_the_commits_before_stay(tmp_path: Path) -> None:
    plan = plan_in(tmp_path, Aim("chat commits", nth=3, victims="app"))
    exit_code, _ = killed_child(COMMITTER, plan)
    assert exit_code == -signal.SIGKILL
    connection = sqlite3.connect(tmp_path / "x.db")
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master ORDER BY name")]
    connection.close()
    assert tables == ["t0", "t1"]


def test_a_plan_survives_the_way_through_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(
        str(tmp_path), "j", 3, (Choice("a.gguf"), Choice("b.gguf", "q8_0")),
        Aim("index commits", 2, 0.5, "both"), sabotage="crash",
    )  # fmt: skip
    for name, value in plan.environment().items():
        monkeypatch.setenv(name, value)
    assert plan_of_environment() == plan
