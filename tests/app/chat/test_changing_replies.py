"""A reply that the user changes, a chat that is copied, and thinking that is folded."""

from dataclasses import replace
from pathlib import Path

from app.chat.entries import CONTINUES, thinking_text
from app.render.lines import plain
from app.render.transcript import EntryLines
from engine.events import Thinking
from tests.app.chat.conftest import Start, contents
from tests.support.fakes_client import CONFIGURATION, Script, text_of_ids

THINKS = "<think>\nfirst this\nthen that\n</think>\n\nThe answer."


def text_of(lines: EntryLines, width: int = 80) -> str:
    return "\n".join(plain(line) for line in lines.lines(width))


def test_a_reply_continues_from_a_changed_text(start: Start) -> None:
    conversation, client = start(Script(replies=("Red is nice.", " and blue.")))
    conversation.send("which")
    conversation.poll()
    [question, reply] = conversation.entries()
    before = conversation.history.message(reply.key)
    conversation.edit(reply.key, "Red is loud")
    request = client.requests[-1]
    assert request.continues_text == "Red is loud"
    assert text_of_ids(request.continues) == "Red is nice.", "ids of a like text, to be reused"
    conversation.poll()
    [same, changed] = conversation.entries()
    assert (same.key, changed.n_variants) == (question.key, 2)
    assert changed.content == "Red is loud and blue."
    assert conversation.history.message(before.id) == before
    assert conversation.switch_variant(changed.key, -1)
    assert conversation.entries()[-1].content == "Red is nice."


def test_a_changed_reply_is_saved_before_the_first_event(start: Start) -> None:
    conversation, _ = start(Script(replies=("one.", "two"), tps=1.0))
    conversation.send("which")
    start.clock.now += 60
    conversation.poll()
    conversation.edit(conversation.entries()[-1].key, "mine")
    conversation.begin_close()
    stored = conversation.history.message(conversation.entries()[-1].key)
    assert stored.content == "mine"


def test_a_fork_has_the_earlier_messages_and_the_chat_is_unchanged(start: Start) -> None:
    conversation, _ = start(Script(replies=("first", "second")))
    for question in ("one", "two"):
        conversation.send(question)
        conversation.poll()
    old = conversation.history.chat
    assert old is not None
    whole = contents(conversation)
    forked = conversation.fork(conversation.entries()[1].key)
    assert forked != old.id
    assert contents(conversation) == whole[:2]
    conversation.send("other")
    conversation.poll()
    conversation.open_chat(old.id)
    assert contents(conversation) == whole


def test_a_fork_of_a_running_reply_can_continue(start: Start) -> None:
    conversation, client = start(Script(replies=("word " * 50, "end."), tps=10))
    conversation.send("go")
    start.clock.now += 1
    conversation.poll()
    live = conversation.entries()[-1]
    assert live.is_live
    old = conversation.history.chat
    assert old is not None
    conversation.fork(live.key)
    copied = conversation.entries()[-1]
    assert copied.content == live.content
    assert copied.ending.startswith("stopped · ")
    assert copied.ending.endswith(CONTINUES)
    start.clock.now += 60
    conversation.poll()
    assert conversation.continue_reply()
    assert client.requests[-1].continues_text == live.content
    assert text_of_ids(client.requests[-1].continues) == live.content
    conversation.open_chat(old.id)
    assert conversation.entries()[-1].content == "word " * 50, "it went on in its own chat"


def test_thinking_is_shown_live_and_folded_at_the_end(start: Start) -> None:
    conversation, _ = start(Script(replies=("x",), tps=1.0))
    conversation.send("why")
    lines = EntryLines(conversation.entries()[-1])
    shown = []
    for start in range(0, len(THINKS), 7):
        lines.append(THINKS[start : start + 7])
        shown.append(text_of(lines))
    lines.set_progress(thinking_text(Thinking(1200, 4.1)))
    assert any("first this" in text for text in shown)
    assert not any("<think>" in text for text in shown[1:])
    assert shown[-1].rstrip().endswith("The answer.")
    assert "then that" not in shown[-1]
    assert "1,200 tokens" in text_of(lines)


def test_a_reply_of_another_model_names_it(start: Start) -> None:
    conversation, _ = start()
    conversation.send("hello")
    conversation.poll()
    assert "by " not in conversation.entries()[-1].ending
    other = replace(CONFIGURATION, model_path=Path("Other-Model.Q8_0.gguf"))
    conversation.poll()
    conversation.load(other)
    assert conversation.poll().is_rebuilt
    assert conversation.entries()[-1].ending.startswith("by Tiny-Instruct")
