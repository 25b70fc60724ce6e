"""`kvchat chats`, run as a user runs it."""

import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from app import paths
from app.cli.main import run
from app.store.chats import ChatStore
from app.store.records import Chat, StoredMessage
from engine.cache.store import SegmentStore
from engine.events import GenerationStats
from tests.app.cli.conftest import MAIN, kvchat
from tests.app.store.conftest import finish
from tests.engine.cache.making import NAMESPACE, payload_of, state_of
from tests.support.chats import add_chat, add_message, add_stored


@pytest.fixture
def store() -> Iterator[ChatStore]:
    with ChatStore(paths.database_path()) as store:
        yield store


def dialogue(store: ChatStore, title: str, answer: str = "It remembers.") -> Chat:
    """Give a chat of a question with two answers, the second one shown."""
    chat = add_chat(store, Chat(title=title, model_path="/m/smol.gguf", system_prompt="Be brief."))
    question = add_message(store, chat.id, None, "user", "Which cache?")
    for text in ("The hidden one.", answer):
        new = StoredMessage(0, chat.id, question.id, "assistant", "", model_name="smol")
        reply = add_stored(store, new)
        finish(store, reply, text)
    return store.chat(chat.id)


def test_the_list_names_each_chat_and_what_it_holds(store: ChatStore) -> None:
    dialogue(store, "old")
    dialogue(store, "a title " + "that is long " * 20)
    lines = kvchat("chats").stdout.splitlines()
    assert lines[0].split() == ["id", "last", "used", "messages", "tokens", "model", "title"]
    assert lines[1].split()[0] == "2"
    assert lines[2].split()[-4:] == ["3", "6", "smol", "old"]
    assert lines[1].rstrip().endswith("that is long")
    listed = json.loads(kvchat("chats", "list", "--json").stdout)
    assert [(chat["id"], chat["n_messages"], chat["n_tokens"]) for chat in listed] == [
        (2, 3, 6), (1, 3, 6),
    ]  # fmt: skip


def test_without_chats_it_reports_it() -> None:
    done = kvchat("chats")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no chats yet" in done.stderr
    assert kvchat("chats", "list", "--json").stdout == "[]\n"


def test_a_chat_is_shown_as_on_the_screen_with_what_was_measured(store: ChatStore) -> None:
    chat = dialogue(store, "Caches")
    store.update_chat(chat.id, context_start=chat.head_id, summary="they talked")
    out = kvchat("chats", "show", "caches").stdout
    assert "Caches\n" in out
    assert "2 of 3 messages" in out
    assert "Be brief." in out
    assert "Which cache?" in out
    assert "It remembers." in out
    assert "hidden" not in out
    assert out.index("no longer sees") < out.index("they talked") < out.index("It remembers.")
    assert chat.head_id is not None
    counts = asdict(GenerationStats(n_rounds=1, n_emitted=3, decode_tps=9.5))
    store.finish_message(replace(store.message(chat.head_id), stats=counts))
    assert kvchat("chats", "show", "caches").stdout == out
    assert "9.5 tok/s" in kvchat("chats", "show", "caches", "--stats").stdout


def test_chats_are_searched_in_all_branches(store: ChatStore) -> None:
    dialogue(store, "Caches")
    out = kvchat("chats", "search", "HIDDEN", "one").stdout
    assert "other branch" in out
    assert "The hidden one." in out
    (hit,) = json.loads(kvchat("chats", "search", '"hidden one"', "--json").stdout)
    assert (hit["chat_id"], hit["is_on_shown_path"]) == (1, False)
    assert hit["marked"] == [[4, 14]]
    nothing = kvchat("chats", "search", "nowhere")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert kvchat("chats", "search", "cache", "-n", "1").stdout.count("Caches") == 1


@pytest.mark.parametrize("words", ["", "  ", '"', '""'])
def test_a_search_for_nothing_is_refused(store: ChatStore, words: str) -> None:
    dialogue(store, "Caches")
    done = kvchat("chats", "search", words)
    assert done.returncode == 2
    assert "specify a word" in done.stderr


def test_hostile_text_is_harmless_in_the_terminal(store: ChatStore) -> None:
    evil = "\x1b]0;owned\x07\u202ecache\r\nx"
    dialogue(store, f"title {evil}", f"answer {evil}")
    for words in (
        "list", "show 1", "search cache", "search --json cache", "list --json", "archive 1",
        f"rename 1 {evil.split()[0]}", "delete 1 -y",
    ):  # fmt: skip
        done = kvchat("chats", *words.split(" "))
        assert done.returncode == 0
        assert not set(done.stdout + done.stderr) & set("\x1b\x07\u202e\r")


def test_a_chat_is_named_by_number_title_or_part_of_one(store: ChatStore) -> None:
    dialogue(store, "KV caches")
    dialogue(store, "Caches")
    dialogue(store, "1")
    assert kvchat("chats", "show", "1").stdout.startswith("KV caches")
    assert kvchat("chats", "show", "caches").stdout.startswith("Caches")
    assert kvchat("chats", "show", "kv").stdout.startswith("KV caches")
    several = kvchat("chats", "show", "cache")
    assert several.returncode == 1
    assert "matches 2 titles" in several.stderr
    assert "     2  Caches" in several.stderr
    near = kvchat("chats", "show", "kv cachse")
    assert near.returncode == 1
    assert "KV caches" in near.stderr
    assert "kvchat chats list" in kvchat("chats", "show", "zzz").stderr
    assert kvchat("chats", "show", "").returncode == 1
    for number in range(8):
        dialogue(store, f"Caches {number}")
    assert "and 2 more" in kvchat("chats", "show", "cache").stderr


def test_a_renamed_chat_keeps_the_name(store: ChatStore) -> None:
    chat = dialogue(store, "old")
    assert "is now new name" in kvchat("chats", "rename", "old", " new name ").stderr
    renamed = store.chat(chat.id)
    assert (renamed.title, renamed.title_locked) == ("new name", True)
    assert kvchat("chats", "rename", "1", " ").returncode == 2


def test_an_archived_chat_is_in_the_archive_only(store: ChatStore) -> None:
    dialogue(store, "one")
    dialogue(store, "two")
    assert kvchat("chats", "archive", "one", "1").returncode == 0
    assert "one" not in kvchat("chats").stdout
    assert "one" in kvchat("chats", "list", "--archived").stdout
    assert "· archived 20" in kvchat("chats", "show", "one").stdout
    kvchat("chats", "unarchive", "one")
    assert "archived" not in kvchat("chats", "show", "one").stdout
    assert "one" in kvchat("chats").stdout
    assert "archive is empty" in kvchat("chats", "list", "--archived").stderr


def test_deleting_asks_first(store: ChatStore, monkeypatch: pytest.MonkeyPatch) -> None:
    chat, stored = dialogue(store, "gone"), dialogue(store, "stored")
    done = kvchat("chats", "delete", "gone")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("click.confirm", lambda *_, **__: False)
    assert run(["chats", "delete", "gone"]) == 1
    assert len(store.list_chats()) == 2
    done = kvchat("chats", "delete", "gone", "--yes")
    assert f"chat {chat.id}, gone: 3 messages" in done.stderr
    assert [chat.id for chat in store.list_chats()] == [stored.id]


def test_the_states_saved_for_a_deleted_chat_go_with_it(store: ChatStore) -> None:
    chat, other = dialogue(store, "gone"), dialogue(store, "stored")
    states = [
        state_of((1, 2), owners=(f"chat:{chat.id}", f"chat:{other.id}")),
        state_of((1, 2, 3), 2, owners=(f"chat:{chat.id}",)),
    ]
    with SegmentStore(paths.snapshots_dir()) as folder:
        for state in states:
            folder.write(NAMESPACE, state, payload_of(state))
        done = kvchat("chats", "delete", "gone", "--yes")
        assert "1 saved state" in done.stderr
        assert [state.key for state in folder.segments()] == [states[0].key]


def test_deleting_makes_no_folder_where_nothing_is_saved(store: ChatStore) -> None:
    dialogue(store, "gone")
    assert run(["chats", "delete", "gone", "--yes"]) == 0
    assert not paths.snapshots_dir().exists()


def test_states_that_cannot_be_deleted_are_reported_beside_the_deleted_chat(
    store: ChatStore,
) -> None:
    dialogue(store, "gone")
    paths.snapshots_dir().mkdir(parents=True)
    (paths.snapshots_dir() / "states.db").mkdir()
    done = kvchat("chats", "delete", "gone", "--yes")
    assert done.returncode == 0
    assert "is deleted" in done.stderr
    assert "states of the chat could not be deleted" in " ".join(done.stderr.split())
    assert not store.list_chats()


def test_a_name_that_is_not_found_deletes_nothing(store: ChatStore) -> None:
    dialogue(store, "one")
    assert kvchat("chats", "delete", "one", "zzz", "--yes").returncode == 1
    assert len(store.list_chats()) == 1


def test_a_chat_that_another_kvchat_writes_is_not_deleted(store: ChatStore) -> None:
    chat = dialogue(store, "open")
    lock = store.lock_chat(chat.id)
    assert lock is not None
    with lock:
        refused = kvchat("chats", "delete", "open", "--yes")
    assert refused.returncode == 1
    assert "another kvchat process" in refused.stderr
    assert "or saved" not in refused.stderr
    assert kvchat("chats", "delete", "open", "--yes").returncode == 0


def test_an_export_comes_back_as_a_second_chat(store: ChatStore, tmp_path: Path) -> None:
    chat = dialogue(store, "Caches")
    lines = tmp_path / "all.jsonl"
    done = kvchat("chats", "export", "--all", "-o", str(lines))
    assert "1 chat in" in done.stderr
    assert stat.S_IMODE(lines.stat().st_mode) == 0o600
    for name in (str(lines), str(lines)):
        assert "chat" in kvchat("chats", "import", name).stderr
    trees = [store.tree(each.id) for each in store.list_chats()]
    assert len(trees) == 3
    assert all(tree.messages[2].token_ids == (1, 2, 3) for tree in trees)
    assert len({tree.chat.updated_at for tree in trees}) == 1
    assert store.chat(chat.id) == chat


def test_markdown_reports_what_it_leaves_out(store: ChatStore, tmp_path: Path) -> None:
    dialogue(store, "Caches")
    done = kvchat("chats", "export", "1")
    assert "## smol" in done.stdout
    assert "hidden" not in done.stdout
    assert "1 message on other" in done.stderr
    file = tmp_path / "chat.md"
    done = kvchat("chats", "export", "1", "--branches", "-o", str(file))
    assert "not exported" not in done.stderr
    assert "The hidden one." in file.read_text()
    refused = kvchat("chats", "import", str(file))
    assert refused.returncode == 1
    assert "not a kvchat chat file" in refused.stderr


def test_a_file_is_replaced_only_when_that_is_reported(store: ChatStore, tmp_path: Path) -> None:
    dialogue(store, "Caches")
    file = tmp_path / "chat.md"
    file.write_text("mine")
    refused = kvchat("chats", "export", "1", "-o", str(file))
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    assert file.read_text() == "mine"
    assert kvchat("chats", "export", "1", "-o", str(file), "--force").returncode == 0
    assert file.read_text() != "mine"


def test_what_to_export_is_reported_once(store: ChatStore) -> None:
    dialogue(store, "Caches")
    assert kvchat("chats", "export").returncode == 2
    assert kvchat("chats", "export", "1", "--all").returncode == 2


def test_a_wrong_file_adds_nothing_of_any_file(store: ChatStore, tmp_path: Path) -> None:
    dialogue(store, "Caches")
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    kvchat("chats", "export", "--all", "-o", str(good))
    bad.write_text(good.read_text().replace('"role":"user"', '"role":"robot"'))
    done = kvchat("chats", "import", str(good), str(bad))
    assert done.returncode == 1
    assert "bad.jsonl, line 2" in done.stderr
    assert len(store.list_chats()) == 1
    missing = kvchat("chats", "import", str(tmp_path / "none.md"))
    assert missing.returncode == 1
    assert "cannot be read" in missing.stderr


def test_folders_are_listed_and_an_import_prints_what_it_added(
    store: ChatStore, tmp_path: Path
) -> None:
    for title in ("one", "two"):
        chat = dialogue(store, title)
        store.update_chat(chat.id, folder="garden")
    [head, first, _] = kvchat("chats").stdout.splitlines()
    assert head.split()[-2:] == ["folder", "title"]
    assert first.split()[-2:] == ["garden", "two"]
    file = str(tmp_path / "chats.jsonl")
    kvchat("chats", "export", "--all", "-o", file)
    added = kvchat("chats", "import", file)
    assert (added.stdout + added.stderr).splitlines()[-1] == "imported 2 chats with 6 messages"
    with Path(file).open() as piped:
        again = subprocess.run(
            [sys.executable, "-c", MAIN, "chats", "import", "-"],
            stdin=piped, capture_output=True, text=True, check=True,
        )  # fmt: skip
    assert again.stderr.splitlines()[-1] == "imported 2 chats with 6 messages"
    assert len(store.list_chats()) == 6
