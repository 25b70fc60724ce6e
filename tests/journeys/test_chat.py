"""Chats as a user has them: the real screen over the real engine, and what is saved of them."""

import json
import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.hostile_language_server import serving
from tests.support.kvchat import Kvchat
from tests.support.waiting import wait_until

pytestmark = pytest.mark.model

LONG = "Count from one to two hundred in words, and leave nothing out."


def figure(screen: str, name: str) -> int:
    """The figure of a reply after its name on the screen."""
    found = re.search(rf"{name} +([\d,]+)", screen)
    assert found is not None, screen
    return int(found[1].replace(",", ""))


def test_a_first_start_without_a_model_leads_to_one(tmp_path: Path, starter_path: Path) -> None:
    user = Kvchat(tmp_path / "user", settings="[chat]\nmax_tokens = 40\n")
    try:
        user.start()
        user.sees("no model")
        user.press("esc")
        user.sees("Ask something")
        (user.models / starter_path.name).symlink_to(starter_path)
        user.press("ctrl+o")
        user.sees("1 model")
        user.press("enter")
        user.opened()
        user.asks("Write hello.")
        user.answered(1)
        user.quits()
    finally:
        user.close()


def test_a_chat_is_stopped_answered_again_edited_and_forked(kvchat: Kvchat) -> None:
    kvchat.start("smollm2")
    kvchat.opened()
    kvchat.asks("Name three colours.")
    kvchat.answered(1)
    kvchat.press("ctrl+g")
    kvchat.answered(2)
    kvchat.sees("variant 2 of 2")
    kvchat.press("tab", "e")
    kvchat.sees("editing")
    kvchat.press("esc")
    kvchat.press("ctrl+n")
    kvchat.sees("New chat")
    kvchat.quits()
    saved = kvchat.messages()
    assert [each.role for each in saved] == ["user", "assistant", "assistant"]
    assert saved[1].content == saved[2].content, "greedy text is the same again"


def test_esc_stops_a_reply_and_keeps_its_text(kvchat: Kvchat) -> None:
    kvchat.settings("[chat]\ntemperature = 0.0\nmax_tokens = 400\n")
    kvchat.start("smollm2")
    kvchat.opened()
    kvchat.asks(LONG)
    kvchat.sees("model  ")
    wait_until(lambda: kvchat.settles(0.1) and any(m.content for m in kvchat.messages()[1:]))
    kvchat.press("esc")
    kvchat.sees("stopped")
    kvchat.quits()
    question, reply = kvchat.messages()
    assert question.content == LONG
    assert reply.content
    assert reply.finish_reason == "cancelled"
    assert len(reply.token_ids) == reply.stats["n_emitted"] < 400


def test_figures_on_the_panels_are_those_that_are_saved(kvchat: Kvchat) -> None:
    kvchat.start("smollm2")
    kvchat.opened()
    kvchat.asks("Repeat this line twice: the quick brown fox jumps over the lazy dog.")
    shown = kvchat.answered(1)
    kvchat.quits()
    stats = kvchat.messages()[1].stats
    n_accepted, n_verified = stats["n_accepted"], stats["n_verified"]
    assert figure(shown, "validated") == n_accepted
    assert figure(shown, "refuted") == n_verified - n_accepted
    assert figure(shown, "ctx") == stats["n_prompt"] + stats["n_emitted"] - 1


def test_the_screen_and_a_command_give_the_same_reply(kvchat: Kvchat) -> None:
    kvchat.start("smollm2")
    kvchat.opened()
    kvchat.asks("Name three colours.")
    kvchat.answered(1)
    kvchat.quits()
    reply = kvchat.messages()[1]
    alone = kvchat.json("run", "Name three colours.", "--model", "smollm2", "--json")
    assert (alone["text"], tuple(alone["token_ids"])) == (reply.content, reply.token_ids)
    assert alone["n_prompt"] == reply.stats["n_prompt"]


def test_a_chat_continues_after_a_restart_from_what_is_saved(kvchat: Kvchat) -> None:
    kvchat.start("smollm2")
    kvchat.opened()
    kvchat.asks("Explain in two sentences what a lighthouse keeper does all night long.")
    kvchat.answered(1)
    kvchat.quits()
    assert kvchat.json("cache", "list", "--json"), "its state is on disk"
    kvchat.start("smollm2")
    kvchat.opened()
    kvchat.sees("Explain in two sentences")
    kvchat.press("down")
    kvchat.settles()
    kvchat.press("enter")
    kvchat.sees("you    Explain in two sentences")
    kvchat.asks("And by day?")
    kvchat.answered(2)
    kvchat.quits()
    _, first, _, second = kvchat.messages()
    n_before = first.stats["n_prompt"] + first.stats["n_emitted"]
    assert second.stats["n_reused"] >= n_before - 8, "nothing of the first turn is computed again"


def test_a_killed_engine_is_started_again_and_nothing_is_lost(kvchat: Kvchat) -> None:
    kvchat.start("smollm2")
    kvchat.opened()
    kvchat.asks("Name three colours.")
    kvchat.answered(1)
    for pid in kvchat.engine_pids:
        os.kill(pid, signal.SIGKILL)
    kvchat.sees("ctrl+r")
    kvchat.press("ctrl+r")
    kvchat.opened()
    kvchat.asks("And three more?")
    kvchat.answered(2)
    kvchat.quits()
    assert [each.role for each in kvchat.messages()] == ["user", "assistant"] * 2
    assert all(each.content for each in kvchat.messages())


def test_leaving_ends_the_engine(kvchat: Kvchat) -> None:
    kvchat.start("smollm2")
    kvchat.opened()
    engines = kvchat.engine_pids
    assert engines
    kvchat.quits()
    wait_until(lambda: not any(map(psutil.pid_exists, engines)))


def test_an_attached_file_reaches_the_model_and_is_saved(kvchat: Kvchat) -> None:
    (kvchat.work / "notes.txt").write_text("The password of the harbour master is 'heron'.\n")
    kvchat.start("smollm2")
    kvchat.opened()
    kvchat.asks("What is the password in @notes.txt ?")
    kvchat.answered(1)
    kvchat.quits()
    question, reply = kvchat.messages()
    assert "heron" in question.content
    assert reply.stats["n_prompt"] > 50


def test_a_chat_that_fills_its_context_offers_what_to_do(kvchat: Kvchat) -> None:
    presets = kvchat.folder / "config" / "kvchat" / "presets"
    presets.mkdir()
    (presets / "small.toml").write_text('name = "small"\nn_ctx = 256\n')
    kvchat.start("smollm2", "--preset", "small")
    kvchat.opened()
    kvchat.asks("word " * 150)
    kvchat.answered(1)
    kvchat.asks("more " * 150)
    kvchat.sees("the context is full", "Drop the oldest turns")
    kvchat.press("esc")
    kvchat.quits()


def test_a_server_answers_in_the_same_screen(kvchat: Kvchat) -> None:
    with serving("llama-server") as server:
        kvchat.start("--server", server.url)
        kvchat.sees("Ask something")
        kvchat.asks("Hello")
        kvchat.sees("The cat sat on the mat.")
        kvchat.quits()
    assert kvchat.messages()[1].content.startswith("The cat sat on the mat.")


def test_a_plan_is_loaded_and_opens_with_the_context_that_was_planned(kvchat: Kvchat) -> None:
    kvchat.start("smollm2")
    kvchat.opened()
    kvchat.press("F2")
    kvchat.sees("alternatives")
    kvchat.press("down")
    plan = kvchat.sees("8,192")
    assert "planned" in plan
    kvchat.press("enter")
    kvchat.opened()
    kvchat.quits()


def test_commands_answer_a_prompt_and_a_file_of_prompts(kvchat: Kvchat) -> None:
    one = kvchat.json("run", "Name a colour.", "--model", "smollm2", "--json", "--seed", "4")
    assert one["token_ids"]
    prompts = kvchat.work / "prompts.jsonl"
    lines = [{"id": n, "prompt": text} for n, text in enumerate(("One?", "Two?", "Three?"))]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    arguments = ("batch", "prompts.jsonl", "--model", "smollm2", "--out", "out.jsonl")
    kvchat.run(*arguments, "--parallel", "2", "--max-tokens", "8")
    results = [json.loads(line) for line in (kvchat.work / "out.jsonl").read_text().splitlines()]
    assert sorted(each["id"] for each in results) == [0, 1, 2]
    assert all(each["token_ids"] for each in results)
    before = (kvchat.work / "out.jsonl").read_bytes()
    kvchat.run(*arguments, "--parallel", "2", "--max-tokens", "8")
    assert (kvchat.work / "out.jsonl").read_bytes() == before, "nothing is answered twice"


def test_an_export_is_imported_as_the_same_settings(kvchat: Kvchat) -> None:
    typed = ("--ctx", "2048", "--kv", "q8_0", "--slots", "2", "--threads", "3")
    (kvchat.work / "serve.sh").write_text(
        kvchat.run("export", "smollm2", "--format", "shell", *typed)
    )
    kvchat.run("import", "serve.sh", "--name", "back", "--save")
    target = ("--target", "llama-server", "--json")
    there = kvchat.json("plan", "smollm2", *typed, *target)
    back = kvchat.json("plan", "smollm2", "--preset", "back", *target)
    assert there["n_ctx"] == back["n_ctx"] == 2048
    for one, other in zip(there["devices"], back["devices"], strict=True):
        for what in ("weights_bytes", "kv_bytes", "compute_bytes"):
            assert one[what] == other[what], what
